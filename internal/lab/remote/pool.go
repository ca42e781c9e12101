package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// Pool is the connections to the hosts of an inventory. A host is connected when it is first
// needed, and again after a loss of the connection. It is safe for use by several goroutines.
type Pool struct {
	inv   *Inventory
	opt   Options
	mu    sync.Mutex
	hosts map[string]*Host
	on    map[string]bool // what Power has done
}

// NewPool returns a pool without connections.
func NewPool(inv *Inventory, o Options) *Pool {
	return &Pool{inv: inv, opt: o, hosts: map[string]*Host{}, on: map[string]bool{}}
}

// UnreachableError is a host that cannot be reached now.
type UnreachableError struct {
	Host string
	Err  error
}

func (e *UnreachableError) Error() string { return fmt.Sprintf("reach host %s: %v", e.Host, e.Err) }
func (e *UnreachableError) Unwrap() error { return e.Err }

// LostHost returns the name of the host, for the lab's engine.
func (e *UnreachableError) LostHost() string { return e.Host }

// Connect returns the connection to a host, which may be new. Errors: *UnreachableError.
func (p *Pool) Connect(ctx context.Context, name string) (*Host, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[name]
	if h != nil && h.Err() == nil {
		return h, nil
	}
	if h != nil {
		_ = h.Close() // its connection is lost
	}
	h, err := Dial(ctx, p.inv, name, p.opt)
	if err != nil {
		return nil, &UnreachableError{name, err}
	}
	p.hosts[name] = h
	return h, nil
}

// patienceToBoot is how long a host that was switched on may take until it lets the lab in.
const patienceToBoot = 10 * time.Minute

// Power switches hosts on and off, at the same time, where that was not done before, and waits
// until those that are on let the lab in. Errors: *UnreachableError.
func (p *Pool) Power(ctx context.Context, want map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, patienceToBoot)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	var others []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if was, known := p.on[name]; known && was == want[name] {
			continue
		}
		if h := p.hosts[name]; h != nil {
			_ = h.Close() // its connection may be lost
		}
		delete(p.hosts, name)
		delete(p.on, name)
		others = append(others, name)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	for _, name := range others {
		wg.Go(func() {
			on := want[name]
			h, err := p.turn(ctx, name, on)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, &UnreachableError{name, err})
				return
			}
			if p.on[name] = on; on {
				p.hosts[name] = h
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// turn switches one host, and connects to it if it is on.
func (p *Pool) turn(ctx context.Context, name string, on bool) (*Host, error) {
	s := p.inv.Lookup(name)
	command := s.Down
	if on {
		command = s.Up
	}
	if out, err := exec.CommandContext(ctx, "/bin/sh", "-c", command).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %q", command, err, out)
	}
	for on {
		h, err := Dial(ctx, p.inv, name, p.opt)
		if err == nil {
			return h, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(time.Second):
		}
	}
	return nil, nil
}

// Close disconnects all hosts.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(p.hosts)) {
		if h := p.hosts[name]; h.Err() == nil { // else there is no connection to close
			errs = append(errs, h.Close())
		}
	}
	return errors.Join(errs...)
}
