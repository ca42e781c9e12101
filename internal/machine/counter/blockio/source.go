package blockio

import (
	"math"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/bpf"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Variant is what is counted, part of a spec's key.
const Variant = "bpf"

// Source is the counter.Source of the I/O signal. Costs are in seconds per
// request; Lost counts requests.
type Source struct{ *windows }

type windows = bpf.Windows[blockioDone, *blockioDone]

// Open loads the programs, or returns a *counter.NotSupportedError.
func Open() (*Source, error) {
	var w *windows
	k, err := bpf.Load(loadPrograms)
	if err == nil {
		w, err = bpf.Open[blockioDone](k)
	}
	if err != nil {
		return nil, bpf.NotSupported("block I/O by eBPF", "Linux 5.12 or newer with BTF and CONFIG_BLK_CGROUP", err)
	}
	return &Source{w}, nil
}

// Info implements counter.Source.
func (s *Source) Info() counter.Info { return s.InfoOf(sample.IO, Variant) }

// Shared lists the disks that two tasks have both used since they are followed, as far
// as they are reported: the first four of each task.
func (s *Source) Shared(a, b sample.TaskKey) (both []host.Device) {
	for _, disk := range s.Common(a, b) {
		both = append(both, host.Device{Major: uint32(disk >> 32), Minor: uint32(disk)})
	}
	return both
}

// Add implements bpf.Record.
func (d *blockioDone) Add(more *blockioDone) {
	d.Ops += more.Ops
	d.Bytes += more.Bytes
	d.Ns += more.Ns
}

// Places implements bpf.Record: disks.
func (d *blockioDone) Places() ([]uint64, bool) { return d.Disks[:], d.More > 0 }

// Waited implements bpf.Record.
func (d *blockioDone) Waited() time.Duration { return time.Duration(d.Ns) }

// Reading implements bpf.Record.
func (d *blockioDone) Reading() counter.Reading {
	took := float64(d.Ns) / 1e9
	r := counter.Reading{Cost: math.NaN(), Coverage: 1}
	r.Extras.Set(sample.IOOps, float64(d.Ops))
	r.Extras.Set(sample.IOBytes, float64(d.Bytes))
	r.Extras.Set(sample.IOTime, took)
	if d.Ops > 0 {
		r.Cost = took / float64(d.Ops)
	}
	return r
}
