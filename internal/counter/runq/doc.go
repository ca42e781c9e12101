// Package runq counts the run-queue signal: how long a task's threads wait to
// run while their CPU runs another task, per second of CPU time that the task
// gets. Waiting behind its own threads and being held back by its own quota
// are counted apart, since no neighbour is to blame for them. Of the rest it is
// told which tasks were served meanwhile, and for how long (Reading.Served).
//
// [Open] gives a counter.Source of variant "bpf", programs on the scheduler's
// tracepoints (runq.bpf.c) that are attached while a window is open and at no
// other time. Where the kernel refuses them it gives one of variant
// "schedstat", which sums /proc/PID/task/TID/schedstat and can tell neither
// whom a thread waited for nor what threads did that are gone. The two never
// mix in a spec. Before Linux 5.17 the first does not tell who was served either.
//
// docs/signals/runq.md says what the signal sees, what it cannot, and its cost;
// docs/design/0008-accounting.md why waits are charged as they are.
package runq

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror" runq runq.bpf.c
