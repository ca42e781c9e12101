// Package runq counts the run-queue signal: how long a task's threads wait to
// run while their CPU runs another task, per second of CPU time that the task
// gets. Waits behind its own threads and time held back by its own quota are
// counted apart, since no neighbour causes them. For the other waits it reports
// which tasks were served meanwhile, and for how long (Reading.Served).
//
// [Open] returns a counter.Source of variant "bpf", programs on the scheduler's
// tracepoints (runq.bpf.c) that are attached only while a window is open. If the
// kernel refuses them it returns one of variant "schedstat", which sums
// /proc/PID/task/TID/schedstat. That shows neither which task a thread waited for
// nor what ended threads did. The two never mix in a spec. Before Linux 5.17 "bpf"
// does not report served tasks either.
//
// docs/signals/runq.md says what the signal sees, what it cannot, and its cost;
// docs/design/0008-accounting.md why waits are charged as they are.
package runq

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror" runq runq.bpf.c
