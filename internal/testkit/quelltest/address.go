package quelltest

import (
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
)

// Loopback returns a loopback IP address that only this process listens on: each process id
// has one.
func Loopback() net.IP {
	pid := os.Getpid()
	return net.IPv4(127, byte(64+pid>>16), byte(pid>>8), byte(pid))
}

var ports atomic.Int32 // tried so far

// FreeAddress returns an address of Loopback for a server that is started later, and perhaps
// again after a kill. It remains free: no port is returned twice, and none is one that the
// kernel chooses (ip(7), ip_local_port_range).
func FreeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		address := net.JoinHostPort(Loopback().String(), strconv.Itoa(10000+int(ports.Add(1))))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue // a program listens on this port of every address
		}
		l.Close()
		return address
	}
	t.Fatal("no free port")
	return ""
}
