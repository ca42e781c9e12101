// Package netq counts the network signal: how long a task's packets wait in the
// queues of interfaces, per packet. A packet's wait begins when it is handed to
// an interface that has a queue (qdisc) and ends when the interface's driver
// gets it. It includes the time for shapers and other tasks' packets before it,
// but not that of the driver, the wire and the receiver.
//
// A handful of eBPF programs is attached only while a window is open. A packet
// belongs to the task that sent last on its socket or, out of a container, to
// its task before it came through the container's interface.
//
// docs/signals/net.md says what the signal sees, what it cannot, and its cost.
package netq

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror" netq netq.bpf.c
