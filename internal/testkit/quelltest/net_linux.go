package quelltest

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Net is a network namespace. Its methods need the programs ip, tc and nsenter.
type Net struct {
	t   testing.TB
	pid int // of a process in it
}

// OwnNet is the namespace that the test runs in.
func OwnNet(t testing.TB) *Net { return &Net{t, os.Getpid()} }

// NewNet makes a namespace with only lo. It and the processes in it last as long as the test.
func NewNet(t testing.TB) *Net {
	t.Helper()
	cmd := exec.Command("sh", "-c", "echo made; read line")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	keeper := StartChild(t, cmd, "")
	keeper.Hear()
	n := &Net{t, keeper.PID}
	n.Run("ip link set lo up")
	return n
}

// Command returns a command that runs in the namespace.
func (n *Net) Command(words ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-t", strconv.Itoa(n.pid), "-n"}, words...)...)
}

// Run runs a line of words in the namespace.
func (n *Net) Run(line string) {
	n.t.Helper()
	if out, err := n.Command(strings.Fields(line)...).CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %v: %s", line, err, out)
	}
}

// Link joins two namespaces with a pair of interfaces: here with address
// SUBNET.1 in n, there with address SUBNET.2 in far.
func (n *Net) Link(here string, far *Net, there, subnet string) {
	n.t.Helper()
	n.Run("ip link add " + here + " type veth peer name " + there + " netns " + strconv.Itoa(far.pid))
	n.Run("ip addr add " + subnet + ".1/24 dev " + here)
	n.Run("ip link set " + here + " up")
	far.Run("ip addr add " + subnet + ".2/24 dev " + there)
	far.Run("ip link set " + there + " up")
}

// Shape limits what an interface sends to a rate in tc's notation ("20mbit"),
// with a queue of 200 kB before it.
func (n *Net) Shape(name, rate string) {
	n.t.Helper()
	n.Run("tc qdisc add dev " + name + " root tbf rate " + rate + " burst 4kb limit 200kb")
}
