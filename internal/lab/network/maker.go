package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Maker makes environments on their study's networks.
type Maker struct {
	lab.Maker
	enter []string

	mu     sync.Mutex
	fabric *Fabric
	nets   map[string]study.Network
}

// With puts the environments of another maker on their networks of the study. enter is
// the command line that calls Enter with the words that follow it: the path, then the
// program's. Networks are made when the first environment needs one.
func With(inner lab.Maker, nets map[string]study.Network, enter []string) *Maker {
	return &Maker{Maker: inner, nets: nets, enter: enter}
}

// Make implements lab.Maker.
func (m *Maker) Make(ctx context.Context, p *study.Part) (lab.Environment, error) {
	if p.Environment.Network == "" {
		return m.Maker.Make(ctx, p)
	}
	if err := Refuse(p); err != nil {
		return nil, err
	}
	address, err := netip.ParsePrefix(p.Address)
	if err != nil {
		return nil, fmt.Errorf("join network %s: %w", p.Environment.Network, err)
	}
	m.mu.Lock()
	if m.fabric == nil {
		m.fabric, err = Open(m.nets)
	}
	fabric := m.fabric
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	joined, err := fabric.Join(p.Environment.Network, address, Within(p) && p.Environment.Driver != study.LXC)
	if err != nil {
		return nil, err
	}
	if b := p.Environment.Bandwidth; b != nil {
		if err := joined.LimitRate(*b); err != nil {
			return nil, errors.Join(err, joined.Close())
		}
	}
	e := &placed{port: joined}
	if Within(p) {
		e.Environment, err = m.Maker.(lab.Linker).MakeOn(ctx, p, joined)
	} else {
		e.enter = append(slices.Clone(m.enter), joined.Path())
		e.Environment, err = m.Maker.Make(ctx, p)
	}
	if err != nil {
		return nil, errors.Join(err, joined.Close())
	}
	return e, nil
}

// Within reports whether a part's environment is itself on its network, with a file system
// of its own; of others each program is.
func Within(p *study.Part) bool {
	return slices.Contains([]study.Driver{study.QEMU, study.Xen, study.LXC}, p.Environment.Driver)
}

// Refuse returns the *lab.LackError with which a part cannot be on its network.
func Refuse(p *study.Part) error {
	switch e := &p.Environment; {
	case e.Network == "":
	case e.Driver == study.QEMU && e.Image == "":
		return &lab.LackError{What: "a guest without image cannot be on a network: it has no driver for a network card", Remedy: "give the environment an image: (quell lab image build)"}
	}
	return nil
}

// Close removes the networks, after all environments have left.
func (m *Maker) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fabric == nil {
		return nil
	}
	err := m.fabric.Close()
	m.fabric = nil
	return err
}

// placed is an environment on a network.
type placed struct {
	lab.Environment
	port  *Port
	enter []string // words before each program; none if the environment is on the network
}

// Start implements lab.Environment.
func (p *placed) Start(ctx context.Context, j lab.Job) (lab.Process, error) {
	j.Argv = slices.Concat(p.enter, j.Argv)
	return p.Environment.Start(ctx, j)
}

// Traffic implements the method by Port.Traffic.
func (p *placed) Traffic() (lab.Traffic, error) { return p.port.Traffic() }

// Unwrap returns the environment without its network.
func (p *placed) Unwrap() lab.Environment { return p.Environment }

// Inside is that of the environment.
func (p *placed) Inside() lab.Watchable {
	if guest, ok := p.Environment.(interface{ Inside() lab.Watchable }); ok {
		return guest.Inside()
	}
	return nil
}

// Answers implements the method by Port.Answers.
func (p *placed) Answers(ctx context.Context, port int) error { return p.port.Answers(ctx, port) }

// Datagrams implements the method by Port.Datagrams.
func (p *placed) Datagrams() (received, dropped uint64, err error) { return p.port.Datagrams() }

// Close implements lab.Environment.
func (p *placed) Close() error { return errors.Join(p.Environment.Close(), p.port.Close()) }
