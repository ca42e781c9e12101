// Package egress limits what the processes of a cgroup (v2) send. The kernel has
// no file for that as it has for CPU time (cpu.max) and disks (io.max), so a
// program of quell's own at the cgroup's cgroup_skb/egress hook is the limit, and
// [Files] makes it look like a file, net.max, that package enforce can journal,
// change and put back: "max" where there is none, else bytes per second.
//
// The program is the process's own and nowhere pinned. So a limit ends with the
// process whatever happens to it; after a restart the file reads "max", which is
// what the journal wants it to read. And it ends by itself once nobody has read
// it for [Grace]: a process that hangs limits nobody for longer.
//
// A packet that is too much is dropped and the sender is told of congestion
// (NET_XMIT_DROP, __cgroup_bpf_run_filter_skb): TCP goes slower, a datagram is
// lost. Packets to the loopback interface pass.
package egress

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror" egress egress.bpf.c
