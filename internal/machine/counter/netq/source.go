package netq

import (
	"math"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/bpf"
)

// Variant is what is counted, part of a spec's key.
const Variant = "bpf"

// Source is the counter.Source of the network signal. Costs are in seconds per
// packet; Lost counts packets.
type Source struct {
	*windows
	fallback string
}

type windows = bpf.Windows[netqDone, *netqDone]

// Open loads the programs, or returns a *counter.NotSupportedError.
func Open() (*Source, error) {
	var w *windows
	k, err := bpf.Load(loadPrograms)
	if err == nil {
		w, err = bpf.Open[netqDone](k.counts)
	}
	if err != nil {
		return nil, bpf.NotSupported("network queues by eBPF", "Linux 5.11 or newer with BTF and CONFIG_NET_SCHED", err)
	}
	return &Source{w, fallback(k.without)}, nil
}

// Info implements counter.Source. Fallback says what this kernel's count leaves out.
func (s *Source) Info() counter.Info {
	i := s.InfoOf(sample.Net, Variant)
	i.Fallback = s.fallback
	return i
}

func fallback(without []string) string {
	if len(without) == 0 {
		return ""
	}
	return "without " + strings.Join(without, ", ")
}

// Add implements bpf.Record.
func (d *netqDone) Add(more *netqDone) {
	d.Queued += more.Queued
	d.Bytes += more.Bytes
	d.Sent += more.Sent
	d.Ns += more.Ns
	d.Resent += more.Resent
}

// Places implements bpf.Record: interfaces.
func (d *netqDone) Places() ([]uint64, bool) { return d.Links[:], d.More > 0 }

// Waited implements bpf.Record.
func (d *netqDone) Waited() time.Duration { return time.Duration(d.Ns) }

// Reading implements bpf.Record.
func (d *netqDone) Reading() counter.Reading {
	waited := float64(d.Ns) / 1e9
	r := counter.Reading{Cost: math.NaN(), Coverage: 1}
	r.Extras.Set(sample.NetPackets, float64(d.Sent))
	r.Extras.Set(sample.NetBytes, float64(d.Bytes))
	r.Extras.Set(sample.NetQueued, float64(d.Queued)) // packets that a full queue drops are pressure as well
	r.Extras.Set(sample.NetWait, waited)
	r.Extras.Set(sample.NetRetransmits, float64(d.Resent))
	if d.Sent > 0 {
		r.Cost = waited / float64(d.Sent)
	}
	return r
}
