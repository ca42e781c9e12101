package labcmd

import (
	"context"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/env"
	"github.com/quell-dev/quell/internal/lab/remote"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// remoteMaker makes the environments of parts on other hosts. It implements lab.Maker.
type remoteMaker struct {
	study *study.Study
	inv   *remote.Inventory
	here  *env.Maker
	pool  *remote.Pool
	were  map[result.Site]string // the machines of the folder's valid runs
}

// fromInventory is the address of a host that only an inventory knows.
const fromInventory = "inventory"

// hostsOf returns nil for a study that runs only on this machine. The other hosts are
// looked up in the inventory by the study's names. Without an inventory the study's
// addresses are used ("user@host", with a known host key). Hosts without an address are an
// error of the runs that need them (refuse).
func hostsOf(s *study.Study, o runOptions) (*remoteMaker, error) {
	e := &remoteMaker{study: s, inv: &remote.Inventory{}}
	if o.hosts != "" {
		f := hostSelection{helper: "none"} // this program is the helper
		if err := f.read(o.hosts); err != nil {
			return nil, err
		}
		e.inv = f.inv
	}
	others := slices.DeleteFunc(sortedKeys(s.Hosts), func(name string) bool { return s.Hosts[name].Address == study.Local })
	for _, name := range others {
		h := s.Hosts[name]
		if h.Address == fromInventory || o.hosts != "" {
			continue
		}
		spec := remote.HostConfig{Name: name, Address: h.Address}
		if user, address, ok := strings.Cut(h.Address, "@"); ok {
			spec.User, spec.Address = user, address
		}
		e.inv.Hosts = append(e.inv.Hosts, spec)
	}
	if len(others) == 0 {
		return nil, nil
	}
	return e, nil
}

// refuse returns the *lab.LackError of a cell that needs a host which is not in the
// inventory, which cannot be switched on and off as the study wants, or which is to be on one of
// the lab's networks.
func (e *remoteMaker) refuse(c *study.Cell) error {
	if e == nil {
		return nil
	}
	for _, name := range e.study.Observe.Hosts {
		if e.inv.Lookup(name) == nil {
			return &lab.LackError{What: "host " + name + ", which the study observes, is not in the inventory", Remedy: "give an inventory with the study's names by --hosts (quell lab hosts --help)"}
		}
	}
	for i := range c.Parts {
		p := &c.Parts[i]
		h := p.Host
		asked, isHost := e.study.Hosts[p.Asks]
		switch spec, deaf := e.inv.Lookup(h), env.RefuseSignals(p, e.study.Here(p)); {
		case deaf != nil:
			return deaf
		case e.study.Here(p):
		case p.Environment.Network != "":
			return &lab.LackError{What: "role " + p.Role + " is on host " + h + ", and network " + p.Environment.Network + " is on the lab's machine", Remedy: "remove network: from its environment, or run the role on the lab's machine"}
		case spec == nil:
			return &lab.LackError{What: "host " + h + " is not in the inventory", Remedy: "give an inventory with the study's names by --hosts (quell lab hosts --help)"}
		case e.study.Hosts[h].Power && (spec.Up == "" || spec.Down == ""):
			return &lab.LackError{What: "host " + h + " has no commands up and down in the inventory, and the study switches it on and off", Remedy: "add them (docs/hosts.md)"}
		case isHost && asked.Address == study.Local && e.inv.Lookup(p.Asks) == nil:
			return &lab.LackError{What: "host " + h + " asks a role on the lab's machine, whose address is not known there", Remedy: "add the lab's machine to the inventory as " + p.Asks + ", with its address (quell lab hosts --help)"}
		}
	}
	return nil
}

// partCommand is lab.Options.Command.
type partCommand = func(*study.Cell, *study.Part) (lab.Job, error)

// addressed is lab.Options.Command for parts that ask a role on another host: they get its
// address there.
func (e *remoteMaker) addressed(inner partCommand) partCommand {
	return func(c *study.Cell, p *study.Part) (lab.Job, error) {
		if e == nil || p.Environment.Network != "" {
			return inner(c, p)
		}
		asks := *p
		if spec := e.inv.Lookup(p.Asks); spec != nil {
			asks.Asks = spec.From()
		}
		return inner(c, &asks)
	}
}

// power is lab.Options.Power.
func (e *remoteMaker) power(ctx context.Context, c *study.Cell) error {
	want := map[string]bool{}
	for name, h := range e.study.Hosts {
		if h.Power && e.inv.Lookup(name) != nil { // a host that is not in the inventory does not exist
			want[name] = !slices.Contains(c.Off, name)
		}
	}
	return e.pool.Power(ctx, want)
}

// Make implements lab.Maker.
func (e *remoteMaker) Make(ctx context.Context, p *study.Part) (lab.Environment, error) {
	if e.study.Here(p) {
		return e.here.Make(ctx, p)
	}
	h, err := e.pool.Connect(ctx, p.Host)
	if err != nil {
		return nil, err
	}
	if err := e.same(p, h.Machine()); err != nil {
		return nil, err
	}
	// The clock drifts from run to run.
	if err := h.MeasureClock(ctx); err != nil {
		return nil, err
	}
	there, err := h.Make(ctx, p)
	if err != nil {
		return nil, err
	}
	return there, nil
}

// same returns the *lab.LackError of a part on another machine than that of the folder's valid runs. A host
// that the study switches on may be made anew each time.
func (e *remoteMaker) same(p *study.Part, machine string) error {
	was := e.were[result.Site{Host: p.Host, Environment: p.Environment.Name}]
	if was == "" || machine == "" || was == machine || e.study.Hosts[p.Host].Power {
		return nil
	}
	return &lab.LackError{What: "host " + p.Host + " is another machine than in this folder's valid runs of environment " + p.Environment.Name,
		Remedy: "give the inventory with that machine by --hosts, or run the study into another folder (lab run --out)"}
}

// watchable is lab.Options.Host.
func (e *remoteMaker) watchable(ctx context.Context, name string) (lab.Watchable, error) {
	h, err := e.pool.Connect(ctx, name)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// MakeOn implements lab.Linker: all networks are on this machine.
func (e *remoteMaker) MakeOn(ctx context.Context, p *study.Part, l lab.Link) (lab.Environment, error) {
	return e.here.MakeOn(ctx, p, l)
}

// Sweep implements lab.Maker. What a helper has left on another host is removed by the
// next helper there.
func (e *remoteMaker) Sweep() error { return e.here.Sweep() }

// close disconnects the hosts; e may be nil.
func (e *remoteMaker) close() error {
	if e == nil {
		return nil
	}
	return e.pool.Close()
}
