package helper

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// shelf is an environment of processes that do nothing.
type shelf struct {
	lab.Environment
	closed chan struct{}
}

func (s *shelf) Start(_ context.Context, j lab.Job) (lab.Process, error) {
	if j.Argv[0] == "missing" {
		return nil, &lab.LackError{What: "no program", Remedy: "install it"}
	}
	return &still{job: j, done: make(chan struct{})}, nil
}

func (s *shelf) Close() error {
	close(s.closed)
	return nil
}

// still is a process that ends when it is stopped, or at once after its beginning if its
// first word is "false".
type still struct {
	job  lab.Job
	done chan struct{}
}

func (p *still) Begin() (time.Time, time.Duration, error) {
	_, _ = io.WriteString(p.job.Stdout, strings.Join(p.job.Argv, " ")+"\n")
	if p.job.Argv[0] == "false" {
		close(p.done)
	}
	return time.Now(), 0, nil
}
func (p *still) Done() <-chan struct{} { return p.done }
func (p *still) Err() error {
	if p.job.Argv[0] == "false" {
		return errors.New("exit status 1")
	}
	return nil
}
func (p *still) Stop() error           { close(p.done); return nil }
func (p *still) Clock(int64) time.Time { return time.Time{} }

// A client starts, begins and stops processes in a helper's only environment, gets their
// output and their errors, and learns that the connection has ended.
func TestOneEnvironment(t *testing.T) {
	here, there := net.Pipe()
	s := &shelf{closed: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- ServeEnvironment(t.Context(), there, s, nil) }()
	over := errors.New("it is over")
	c := Connect(here, here, ClientOptions{Prefix: "in x: ", Self: []string{"{me}"}, Lost: func(error, time.Duration) error { return over }})
	<-c.Hello()
	e := c.Environment()
	var said quelltest.Output
	p, err := e.Run(t.Context(), lab.Job{Name: "fg", Argv: []string{"true", "{me}"}, Stdout: &said})
	if err != nil {
		t.Fatal(err)
	}
	if at, within, err := p.Begin(); err != nil || time.Since(at) < 0 || time.Since(at) > time.Minute || within < 0 {
		t.Errorf("began at %v ± %v: %v", at, within, err)
	}
	if err := p.Stop(); err != nil || p.Err() != nil {
		t.Errorf("stopped: %v, %v", err, p.Err())
	}
	<-p.Done()
	if said.String() != "true "+self+"\n" {
		t.Errorf("said %q", said.String())
	}
	bad, err := e.Run(t.Context(), lab.Job{Name: "bg", Argv: []string{"false"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := bad.Release(); err != nil {
		t.Fatal(err)
	}
	<-bad.Done()
	if err := bad.Err(); err == nil || err.Error() != "in x: exit status 1" {
		t.Errorf("failed: %v", err)
	}
	var lack *lab.LackError
	if _, err := e.Start(t.Context(), lab.Job{Argv: []string{"missing"}}); !errors.As(err, &lack) || lack.What != "in x: no program" || lack.Remedy != "install it" {
		t.Errorf("a missing program: %v", err)
	}
	if _, err := c.Make(t.Context(), &study.Part{}); err == nil {
		t.Error("it makes environments")
	}
	if err := c.MeasureClock(t.Context()); err != nil {
		t.Error(err)
	}
	if offset, unsure := c.Clock(); offset.Abs() > unsure {
		t.Errorf("the clock of the same machine is %v ± %v behind", offset, unsure)
	}
	left, err := e.Run(t.Context(), lab.Job{Argv: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := here.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Errorf("served: %v", err)
	}
	<-s.closed
	<-left.Done()
	if !errors.Is(left.Err(), over) || !errors.Is(c.Reason(), over) {
		t.Errorf("at the end: %v, %v", left.Err(), c.Reason())
	}
	if _, err := e.Run(t.Context(), lab.Job{Argv: []string{"true"}}); !errors.Is(err, over) {
		t.Errorf("after the end: %v", err)
	}
	if from := host.Monotonic(); c.there(c.here(from)) != from {
		t.Error("clocks are not converted back")
	}
}

// slowMaker makes an environment until it is given up, and says in which order it does what.
type slowMaker struct {
	makes chan struct{}
	did   chan string
}

func (m *slowMaker) Make(ctx context.Context, _ *study.Part) (lab.Environment, error) {
	close(m.makes)
	<-ctx.Done()
	m.did <- "gave up"
	return nil, ctx.Err()
}
func (m *slowMaker) Sweep() error { return nil }
func (m *slowMaker) Close() error { m.did <- "closed"; return nil }

// When the lab is gone, an environment that is still being made is given up before the maker is
// closed: made afterwards, it would stay until the next lab.
func TestEndWhileMaking(t *testing.T) {
	here, there := net.Pipe()
	m := &slowMaker{makes: make(chan struct{}), did: make(chan string, 2)}
	served := make(chan error, 1)
	go func() { served <- Serve(t.Context(), there, there, m, nil, "quell", time.Minute) }()
	c := Connect(here, here, ClientOptions{Lost: func(err error, _ time.Duration) error { return err }})
	go func() { _, _ = c.Make(t.Context(), &study.Part{}) }()
	<-m.makes
	if err := here.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Errorf("served: %v", err)
	}
	if first, then := <-m.did, <-m.did; first != "gave up" || then != "closed" {
		t.Errorf("it %s, then it %s", first, then)
	}
	h := helper{ending: true, maker: m}
	if a := h.make(t.Context(), &study.Part{}); a.Failed == nil {
		t.Error("an ending helper makes environments")
	}
}
