package labcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/env"
	"github.com/quell-dev/quell/internal/lab/remote"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// remoteMaker makes the environments of parts on other hosts. It implements lab.Maker.
// Hosts are connected when they are first needed, and again after a loss of the
// connection.
type remoteMaker struct {
	study *study.Study
	inv   *remote.Inventory
	lease time.Duration
	here  *env.Maker
	self  string // this program, which is copied there
	hosts map[string]*remote.Host
}

// fromInventory is the address of a host that only an inventory knows.
const fromInventory = "inventory"

// hostsOf returns nil for a study that runs only on this machine. The other hosts are
// looked up in the inventory by the study's names. Without an inventory the study's
// addresses are used ("user@host", with a known host key).
func hostsOf(s *study.Study, o runOptions) (*remoteMaker, error) {
	e := &remoteMaker{study: s, inv: &remote.Inventory{}, lease: o.lease, hosts: map[string]*remote.Host{}}
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
		if h.Address == fromInventory && o.hosts == "" {
			return nil, app.Usage(fmt.Errorf("run study: host %s: its address is in no inventory", name), "give the hosts with --hosts (quell lab hosts --help)")
		}
		if e.inv.Lookup(name) != nil {
			continue
		}
		if o.hosts != "" {
			return nil, app.Usage(fmt.Errorf("run study: host %s: not in %s", name, o.hosts), "add it there under the study's name for it")
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

// unreachableError means that a host cannot be reached now.
type unreachableError struct {
	host string
	err  error
}

func (e *unreachableError) Error() string    { return fmt.Sprintf("reach host %s: %v", e.host, e.err) }
func (e *unreachableError) Unwrap() error    { return e.err }
func (e *unreachableError) LostHost() string { return e.host }

// Make implements lab.Maker.
func (e *remoteMaker) Make(ctx context.Context, p *study.Part) (lab.Environment, error) {
	if e.study.Here(p) {
		return e.here.Make(ctx, p)
	}
	h := e.hosts[p.Host]
	if h == nil || h.Err() != nil {
		if h != nil {
			_ = h.Close() // its connection is lost
		}
		var err error
		h, err = remote.Dial(ctx, e.inv, p.Host, remote.Options{Helper: e.self, Words: []string{"lab-remote"}, Self: []string{e.self}, Lease: e.lease})
		if err != nil {
			return nil, &unreachableError{p.Host, err}
		}
		e.hosts[p.Host] = h
	}
	there, err := h.Make(ctx, p)
	if err != nil {
		return nil, err
	}
	return there, nil
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
	var errs []error
	for _, name := range sortedKeys(e.hosts) {
		if h := e.hosts[name]; h.Err() == nil { // else there is no connection to close
			errs = append(errs, h.Close())
		}
	}
	return errors.Join(errs...)
}
