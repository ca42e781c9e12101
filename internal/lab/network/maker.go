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
	joined, err := fabric.Join(p.Environment.Network, address)
	if err != nil {
		return nil, err
	}
	if b := p.Environment.Bandwidth; b != nil {
		if err := joined.LimitRate(*b); err != nil {
			return nil, errors.Join(err, joined.Close())
		}
	}
	inner, err := m.Maker.Make(ctx, p)
	if err != nil {
		return nil, errors.Join(err, joined.Close())
	}
	return &placed{inner, joined, m.enter}, nil
}

// Refuse returns the *lab.LackError with which a part cannot be on its network.
func Refuse(p *study.Part) error {
	if d := p.Environment.Driver; p.Environment.Network != "" && d != study.Bare && d != study.Cgroup {
		return &lab.LackError{What: fmt.Sprintf("an environment of driver %s cannot be on a network yet", d), Remedy: "use the driver cgroup"}
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
	enter []string
}

// Start implements lab.Environment.
func (p *placed) Start(ctx context.Context, j lab.Job) (lab.Process, error) {
	j.Argv = slices.Concat(p.enter, []string{p.port.Path()}, j.Argv)
	return p.Environment.Start(ctx, j)
}

// Traffic implements the method by Port.Traffic.
func (p *placed) Traffic() (lab.Traffic, error) { return p.port.Traffic() }

// Answers implements the method by Port.Answers.
func (p *placed) Answers(ctx context.Context, port int) error { return p.port.Answers(ctx, port) }

// Close implements lab.Environment.
func (p *placed) Close() error { return errors.Join(p.Environment.Close(), p.port.Close()) }
