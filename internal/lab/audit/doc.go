// Package audit reports where a run's threads really ran: the share of their run time
// on the CPUs they were placed on, how often they moved between CPUs and between cores,
// and for how long two virtual CPUs shared a core while another core was idle (Podzimek
// et al., CCGrid 2015, figures 1 and 2).
//
// The source is the kernel's record of every context switch of every CPU, from perf
// events of the kind PERF_RECORD_SWITCH (perf_event_open(2), Linux 4.3). This needs no
// tracefs, leaves nothing behind when the lab is killed, and reports the number of lost
// records. Where it is refused, /proc/TID is polled ("poll"): moves between two looks
// are then missed, and Doubled is not known.
package audit
