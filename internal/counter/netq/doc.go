// Package netq counts the network signal: how long a task's packets wait in the
// queues of interfaces, per packet. A packet's wait begins when it is handed to
// an interface that has a queue (qdisc) and ends when the interface's driver
// gets it, so what shapers and other tasks' packets before it cost is in it;
// what the driver, the wire and the receiver take is not.
//
// It is a handful of eBPF programs, attached while a window is open and at no
// other time. A packet is its sender's: of who sent last on its socket or, out of
// a container, of whose it was before it came through the container's interface.
//
// docs/signals/net.md says what the signal sees, what it cannot, and its cost.
package netq

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror" netq netq.bpf.c
