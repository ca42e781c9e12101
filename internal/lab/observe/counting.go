package observe

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/blockio"
	"github.com/quell-dev/quell/internal/machine/counter/netq"
	"github.com/quell-dev/quell/internal/machine/host"
)

// sourceSignals are the signals that no event of a part can provide: the waits of packets and
// of disk requests are known at the device, independent of the task that runs there. The
// agent's own sources count them, for all parts at once.
func sourceSignals() map[string]func() (counter.Source, error) {
	return map[string]func() (counter.Source, error){
		string(sample.IO):  func() (counter.Source, error) { return blockio.Open() },
		string(sample.Net): func() (counter.Source, error) { return netq.Open() },
	}
}

// signalCounter is such a source while a run is watched. It adds no work to the kernel outside
// the steady window.
type signalCounter struct {
	signal string
	source counter.Source
	parts  map[sample.TaskKey]*part
	open   []*host.Cgroup
}

// openCounting opens the source of a signal for all parts. It returns nil if the source
// cannot be opened; every part then has the reason.
func openCounting(signal string, open func() (counter.Source, error), parts []*part) *signalCounter {
	source, err := open()
	if err != nil {
		for _, p := range parts {
			p.setMissing(signal, reason(err))
		}
		return nil
	}
	c := &signalCounter{signal: signal, source: source, parts: map[sample.TaskKey]*part{}}
	for _, p := range parts {
		cg, hier, err := p.cgroup()
		if err != nil {
			p.setMissing(signal, err.Error())
			continue
		}
		c.open = append(c.open, cg)
		key := sample.TaskKey{Hierarchy: hier, Inode: cg.Inode(), FirstSeen: 1}
		if err := source.Add(counter.Target{Key: key, Dir: cg.Dir(), Members: cg.Members, Below: cg.Below}); err != nil {
			p.setMissing(signal, err.Error())
			continue
		}
		c.parts[key] = p
	}
	return c
}

// window starts counting at the beginning of the steady window and stops at its end.
func (c *signalCounter) window(open bool) {
	if c.source == nil {
		return
	}
	var err error
	if open {
		err = c.source.Start()
	} else {
		for _, p := range c.parts { // the source may report nothing for some of them
			p.setMissing(c.signal, "not counted in the window")
		}
		err = c.source.Stop(counter.WindowEnd{}, c.record)
	}
	if err == nil {
		return
	}
	for _, p := range c.parts {
		p.setMissing(c.signal, err.Error())
	}
	_ = c.close() // the reason is already known
}

// record stores what was counted for one part.
func (c *signalCounter) record(key sample.TaskKey, r counter.Reading) {
	p := c.parts[key]
	switch {
	case !math.IsNaN(r.Cost):
		delete(p.missing, signalName(c.signal))
		p.costs[c.signal] = r.Cost
	case r.Err != nil:
		p.setMissing(c.signal, r.Err.Error())
	default:
		p.setMissing(c.signal, "no request or packet of this part in the window")
	}
}

func (c *signalCounter) close() error {
	if c.source == nil {
		return nil
	}
	err := c.source.Close()
	c.source = nil
	for _, cg := range c.open {
		_ = cg.Close() // only read from
	}
	return err
}

// errNoCgroup is why a source cannot distinguish a part from others.
var errNoCgroup = errors.New("the part has no cgroup of its own")

// signalName is the name of a signal among a part's events.
func signalName(signal string) string { return "signal." + signal }

// setMissing records why the part has no value of a signal.
func (p *part) setMissing(signal, why string) { p.missing[signalName(signal)] = why }

// cgroup opens the part's own cgroup in v2 or, where it has none there, in v1's hierarchy
// of the cpu controller. The sources distinguish tasks by these cgroups.
func (p *part) cgroup() (*host.Cgroup, sample.Hierarchy, error) {
	layout := p.host.Layout()
	for _, at := range []struct {
		hier              sample.Hierarchy
		controller, mount string
	}{{sample.Unified, "", layout.Unified}, {sample.V1CPU, "cpu", layout.V1["cpu"]}} {
		dir := p.dirs[at.controller]
		if dir == "" {
			continue
		}
		rel, err := filepath.Rel(at.mount, dir)
		if err != nil {
			return nil, at.hier, fmt.Errorf("find cgroup of %s: %w", p.name, err)
		}
		cg, err := p.host.OpenCgroup(at.hier, "/"+rel)
		return cg, at.hier, err // the error says which cgroup
	}
	return nil, 0, errNoCgroup
}

// signalNames are the signals that parts can have.
func signalNames() []string {
	all := slices.AppendSeq([]string{runqName}, maps.Keys(eventSignals()))
	return slices.Sorted(slices.Values(slices.AppendSeq(all, maps.Keys(sourceSignals()))))
}

// openCountings opens the sources of the signals that the study asks for.
func (o *Observer) openCountings() {
	sources := o.opt.sources
	if sources == nil {
		sources = sourceSignals()
	}
	for _, name := range o.opt.Observe.Signals {
		if open := sources[name]; open != nil {
			if c := openCounting(name, open, o.parts); c != nil {
				o.counting = append(o.counting, c)
			}
		}
	}
}

// count starts or stops all sources.
func (o *Observer) count(open bool) {
	for _, c := range o.counting {
		c.window(open)
	}
}

func (o *Observer) closeCountings() error {
	var errs []error
	for _, c := range o.counting {
		errs = append(errs, c.close())
	}
	return errors.Join(errs...)
}
