// Package egress limits what the processes of a cgroup (v2) send. The kernel has
// no file for that, as it has for CPU time (cpu.max) and disks (io.max). The limit
// is therefore quell's own program at the cgroup's cgroup_skb/egress hook. [Files]
// presents it as a file, net.max, which package enforce can journal, change and
// restore. The file reads "max" without a limit, else bytes per second.
//
// The program belongs to this process and is not pinned, so the limit ends with the
// process in every case. After a restart the file reads "max", as the journal expects. A
// limit also expires if it is not read for [Grace], so a hung process does not extend it.
//
// A packet above the limit is dropped and the sender is notified of congestion
// (NET_XMIT_DROP, __cgroup_bpf_run_filter_skb): TCP slows down, a datagram is
// lost. Packets to the loopback interface pass.
package egress

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror" egress egress.bpf.c
