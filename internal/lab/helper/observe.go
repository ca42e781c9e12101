package helper

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// watched is lab.Observed in its wire format; the start is in the frame.
type watched struct {
	Cell  *study.Cell   `json:"cell"`
	Names []string      `json:"names"`
	Envs  []int         `json:"envs"`
	Sets  [][]string    `json:"sets"`
	Want  study.Observe `json:"want"`
	Run   study.Run     `json:"run"`
}

// observation is a run that the helper observes. The observer is for one goroutine.
type observation struct {
	names []string
	stop  chan struct{}
	mu    sync.Mutex
	lab.Observer
	over bool
}

// observe starts to observe a run, and sends a sample at each full second after its start.
func (h *helper) observe(f *frame) error {
	if f.Watch == nil || h.eyes == nil {
		return errors.New("observe: no run, or nothing is observed here")
	}
	if err := h.unwatch(); err != nil {
		return err
	}
	base, ns := role.Instant()
	o := lab.Observed{Cell: f.Watch.Cell, Names: f.Watch.Names, Start: base.Add(time.Duration(f.NS - ns)), Want: f.Watch.Want, Run: f.Watch.Run}
	h.mu.Lock()
	for _, id := range f.Watch.Envs {
		o.Envs = append(o.Envs, h.envs[id])
	}
	h.mu.Unlock()
	for i, texts := range f.Watch.Sets {
		sets, err := setsOf(texts)
		if err != nil || o.Envs[i] == nil {
			return fmt.Errorf("observe %s: no such environment, or: %w", o.Names[i], err)
		}
		o.Sets = append(o.Sets, sets)
	}
	inner, err := h.eyes(o)
	if err != nil {
		return err
	}
	on := &observation{names: o.Names, stop: make(chan struct{}), Observer: inner}
	h.mu.Lock()
	h.on = on
	h.mu.Unlock()
	go func() {
		for {
			next := o.Start.Add(time.Since(o.Start).Truncate(time.Second) + time.Second)
			t := time.NewTimer(time.Until(next))
			select {
			case <-on.stop:
				t.Stop()
				return
			case <-t.C:
			}
			on.mu.Lock()
			if on.over {
				on.mu.Unlock()
				return
			}
			sample, evidence := on.Second(time.Now())
			on.mu.Unlock()
			_ = h.wire.send(frame{Op: "second", NS: f.NS, Sample: &sample, Evidence: evidence}) // listen detects a lab that is gone
		}
	}()
	return nil
}

// platform is the type of the CPUs where the helper is, "" if it is unknown.
func platform() string {
	h, err := host.Open("/")
	if err != nil {
		return ""
	}
	p, _ := h.Platform() // with an error it is ""
	return string(p)
}

// machine is a hash of what tells the machine where the helper is from others: its firmware's UUID, or
// the id of its system, which is not to be published (machine-id(5)). "" if it has neither.
func machine() string {
	for _, file := range []string{"/sys/class/dmi/id/product_uuid", "/etc/machine-id"} {
		if text, err := os.ReadFile(file); err == nil && len(bytes.TrimSpace(text)) > 0 {
			sum := sha256.Sum256(append([]byte("quell lab "), bytes.TrimSpace(text)...))
			return hex.EncodeToString(sum[:8])
		}
	}
	return ""
}

// observed carries out what the lab asks of the observation.
func (h *helper) observed(f *frame) (a frame) {
	h.mu.Lock()
	on := h.on
	h.mu.Unlock()
	if on == nil {
		return frame{Failed: &failure{Text: f.Op + ": no run is observed"}}
	}
	on.mu.Lock()
	defer on.mu.Unlock()
	switch {
	case f.Op == "energy" && f.Window != nil:
		a.Joules, a.Text = on.Energy(*f.Window)
	case f.Op == "window":
		a.Failed = failureOf(on.Window(f.Yes))
	case f.Op == "conclude":
		for _, name := range on.names {
			a.Parts = append(a.Parts, result.Part{Name: name})
		}
		var err error
		a.Evidence, err = on.conclude(a.Parts)
		a.Failed = failureOf(err)
	}
	return a
}

// conclude closes the observer, once. The caller holds the lock.
func (o *observation) conclude(parts []result.Part) ([]result.Evidence, error) {
	if o.over {
		return nil, nil
	}
	o.over = true
	close(o.stop)
	return o.Close(parts)
}

// unwatch ends an observation that the lab did not end.
func (h *helper) unwatch() error {
	h.mu.Lock()
	on := h.on
	h.on = nil
	h.mu.Unlock()
	if on == nil {
		return nil
	}
	on.mu.Lock()
	defer on.mu.Unlock()
	_, err := on.conclude(nil)
	return err
}

// observer is the lab's side of an observation; it implements lab.Observer.
type observer struct {
	client        *Client
	start         int64 // by the helper's clock
	platform      string
	offset, drift time.Duration
	unsure        time.Duration

	mu      sync.Mutex
	seconds []frame // that the lab has not taken yet
}

// patienceToObserve bounds what the lab asks of an observation: a guest may be frozen.
const patienceToObserve = 20 * time.Second

// Observe implements lab.Watchable. Clocks are compared at the beginning and at the end.
func (c *Client) Observe(ctx context.Context, o lab.Observed) (lab.Observer, error) {
	if err := c.MeasureClock(ctx); err != nil {
		return nil, err
	}
	w := &observer{client: c, start: c.there(o.Start)}
	w.offset, w.unsure = c.Clock()
	f := frame{Op: "observe", NS: w.start, Watch: &watched{Cell: o.Cell, Names: o.Names, Want: o.Want, Run: o.Run}}
	for i, e := range o.Envs {
		there, ok := e.(*Environment)
		if !ok {
			return nil, fmt.Errorf("observe %s: its environment is not at the helper", o.Names[i])
		}
		f.Watch.Envs, f.Watch.Sets = append(f.Watch.Envs, there.id), append(f.Watch.Sets, textsOf(o.Sets[i]))
	}
	c.mu.Lock()
	c.watcher = w
	c.mu.Unlock()
	a, err := c.call(ctx, f)
	w.platform = a.Text
	return w, err
}

func (w *observer) ask(f frame) (frame, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patienceToObserve)
	defer cancel()
	return w.client.call(ctx, f)
}

// Second implements lab.Observer.
func (w *observer) Second(time.Time) (s result.Sample, evidence []result.Evidence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seconds) == 0 {
		return s, nil
	}
	f := w.seconds[0]
	w.seconds = w.seconds[1:]
	if f.Sample != nil {
		s = *f.Sample
	}
	return s, f.Evidence
}

// Window implements lab.Observer.
func (w *observer) Window(open bool) error {
	_, err := w.ask(frame{Op: "window", Yes: open})
	return err
}

// Close implements lab.Observer.
func (w *observer) Close(parts []result.Part) ([]result.Evidence, error) {
	a, err := w.ask(frame{Op: "conclude"})
	if err != nil {
		return nil, err
	}
	for i := range min(len(parts), len(a.Parts)) {
		p := &a.Parts[i]
		parts[i].Events, parts[i].Missing, parts[i].StepEvents, parts[i].Audit = p.Events, p.Missing, p.StepEvents, p.Audit
	}
	ctx, cancel := context.WithTimeout(context.Background(), patienceToObserve)
	defer cancel()
	err = w.client.MeasureClock(ctx)
	now, _ := w.client.Clock()
	w.drift = now - w.offset
	return a.Evidence, err
}

// Energy implements lab.Observer.
func (w *observer) Energy(of result.Window) (joules float64, source string) {
	a, err := w.ask(frame{Op: "energy", Window: &of})
	if err != nil {
		return 0, ""
	}
	return a.Joules, a.Text
}

// Clock is how far the helper's clock was behind the lab's at the beginning, the largest error
// of that, and its change until the end.
func (w *observer) Clock() (offset, within, drift time.Duration) { return w.offset, w.unsure, w.drift }

// Platform is the type of the helper's CPUs (host.Host.Platform), "" if it is unknown.
func (w *observer) Platform() string { return w.platform }

// Machine tells the helper's machine from others, "" if nothing does.
func (w *observer) Machine() string { return w.client.Machine() }
