package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/agent"
	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/atomicfile"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/blockio"
	"github.com/quell-dev/quell/internal/machine/counter/sources"
	"github.com/quell-dev/quell/internal/machine/counter/usage"
	"github.com/quell-dev/quell/internal/machine/egress"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/machine/origin"
)

// journalDir is the directory of the enforcer's journal in the state directory.
const journalDir = "journal"

// reservedThreads is more than the agent's loop, its listeners and Go's collector block at once.
const reservedThreads = 16

// collectAt is how much garbage there may be until it is collected, in percent of what is in use.
// With thousands of tasks that is most of the memory, and the agent makes little garbage: with
// 10,000 cgroups a collection every few minutes (docs/overhead.md).
const collectAt = 50

// run is the daemon, until SIGTERM or SIGINT.
func run(ctx context.Context, c *config.Agent) (err error) {
	ctx, stop := daemon.UntilStopped(ctx)
	defer stop()
	log := daemon.Log(c.LogLevel, c.LogFormat)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	host.ReserveThreads(reservedThreads)
	var preferred sync.WaitGroup
	defer preferred.Wait()
	preferring, stopPreferring := context.WithCancel(ctx)
	defer stopPreferring()
	preferred.Go(func() { preferSelf(preferring, log, c.Nice) })
	h, err := host.Open("/")
	if err != nil {
		return daemon.Usage(err)
	}
	if err := atomicfile.OwnDir(c.StateDir); err != nil {
		return denied(daemon.Usage(fmt.Errorf("state_dir: %w", err)), os.Geteuid())
	}
	e, err := openEnforcer(filepath.Join(c.StateDir, journalDir), h)
	if err != nil {
		return denied(locked(err), os.Geteuid())
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	recoverCaps(log, e)
	release, err := beOnlyAgent(ctx, c, log, h)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release(len(e.Active()) == 0)) }()
	p := agent.Parts{Config: c, Version: version, Machine: h, Enforcer: e, NetWrites: egress.Writes, Descriptors: counter.Descriptors, Log: log}
	if c.Sampling.Phase == "random" {
		p.Random = rand.Float64
	}
	if p.Platform, err = h.Platform(); err != nil {
		return err
	}
	if p.Topology, err = h.Topology(); err != nil {
		return err
	}
	p.Usage = useAccounts(log, h)
	defer func() { err = errors.Join(err, h.CloseAccounts()) }()
	names := origin.New(h, c.Names.Sources())
	naming, stopNames := context.WithCancel(ctx)
	var named sync.WaitGroup
	named.Go(func() { names.Run(naming) })
	defer named.Wait()
	defer stopNames()
	finder := agent.NewHostFinder(h, c, names)
	defer func() { err = errors.Join(err, finder.Close()) }()
	if err := finder.Prime(ctx); err != nil {
		log.Warn("find tasks before the start", "reason", err)
	}
	p.Finder = finder
	openSources(c, h, &p)
	defer func() {
		for _, s := range p.Sources {
			err = errors.Join(err, s.Close())
		}
		for _, s := range p.MachineSources {
			err = errors.Join(err, s.Close())
		}
	}()
	closeTrace, err := openTrace(c, &p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeTrace()) }()
	var decided atomic.Pointer[agent.Agent]
	closeUplink, err := openUplink(c, &p, &decided)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeUplink()) }()
	a, err := agent.New(p)
	if err != nil {
		return err
	}
	decided.Store(a)
	return serve(ctx, c, log, a)
}

// recoverCaps undoes the changes that an earlier agent left in force, before anything else
// can fail. The enforcer keeps those that cannot be undone now, and the agent retries them.
func recoverCaps(log *slog.Logger, e *enforce.Enforcer) {
	if d := e.Damage(); d != "" {
		log.Error("journal was damaged", "what", d)
	}
	outcomes, err := e.RestoreAll(sample.At(time.Now()), agent.LeftOver)
	for _, o := range outcomes {
		log.Warn("undid a cap that an earlier agent left", "task", o.Change.Task, "result", o.Result, "note", o.Note)
	}
	if err != nil {
		log.Error("a cap that an earlier agent left could not be undone; will retry", "reason", err)
	}
}

// beOnlyAgent takes the machine's lock, undoes what dead agents with other state directories
// left, and notes where this agent's journal is. release takes whether nothing is left to undo.
func beOnlyAgent(ctx context.Context, c *config.Agent, log *slog.Logger, h *host.Host) (release func(clean bool) error, err error) {
	lock := &enforce.MachineLock{}
	all, own := enforce.Registry{Dir: c.Journals}, filepath.Join(c.StateDir, journalDir)
	if c.Exclusive {
		err := untilFree(enforce.ErrMachine, func() error {
			lock, err = enforce.LockMachine(h.Tops())
			return err
		})
		if err != nil {
			return nil, onlyOne(err)
		}
		if h.Partial() {
			log.Warn("only a part of this machine's cgroups is visible here: an agent outside would not be refused; run the agent in the host's cgroup namespace")
		}
		for _, who := range lock.Ignored {
			log.Error("the lock on this machine's cgroups is held by a process that is no agent: another agent would not be refused", "holder", who.String())
		}
		did := newRestored(own)
		err = (&restoring{}).others(ctx, did, h, all)
		for _, o := range did.Others {
			for _, u := range o.Undone {
				log.Warn("undid a cap that an agent with another state directory left", "journal", o.Journal, "task", u.Task, "result", u.Result, "note", u.Note)
			}
		}
		if err != nil {
			log.Error("a cap that an agent with another state directory left could not be undone", "reason", err)
		}
		for _, journal := range did.Unreachable {
			log.Warn("another agent's journal cannot be opened from here", "journal", journal)
		}
	}
	if c.Journals != "" {
		if err := all.Note(own, h); err != nil {
			log.Warn("restore will find this agent's journal only by its state directory", "reason", err)
		}
	}
	return func(clean bool) error {
		err := lock.Close()
		if clean && c.Journals != "" {
			err = errors.Join(err, all.Forget(own))
		}
		return err
	}, nil
}

// useAccounts lets the host read usage and pressure of all tasks at once, if the kernel allows that.
// It returns how they are read.
func useAccounts(log *slog.Logger, h *host.Host) string {
	a, err := usage.Open(h.AccountMounts()...)
	if err != nil {
		log.Info("usage of tasks is read from files", "reason", err)
		return "read from files of each task: " + err.Error()
	}
	h.UseAccounts(a, host.FewCgroups)
	return "all tasks are read at once, by eBPF"
}

// openSources opens the requested signals that the machine can count.
func openSources(c *config.Agent, h *host.Host, p *agent.Parts) {
	for _, sig := range sample.Signals() {
		if !c.Counts(sig.Name) {
			continue
		}
		st := api.SignalStatus{Signal: sig.Name}
		s, err := sources.Open(sig.Name, h, p.Topology, canaryBudget(c))
		if err != nil {
			st.Reason, st.Remedy = err.Error(), counter.Remedy(err)
			p.Signals = append(p.Signals, st)
			continue
		}
		switch s := s.(type) {
		case counter.MachineSource:
			p.MachineSources = append(p.MachineSources, s)
		case counter.Source:
			p.Sources = append(p.Sources, s)
		}
		if disks, ok := s.(*blockio.Source); ok {
			p.SharedDisks = disks.Shared
		}
		info := s.Info()
		st.OK, st.Variant, st.Reason = true, info.Variant, info.Fallback
		if info.Expensive != "" {
			st.Reason = info.Expensive
			p.Log.Warn("signal is expensive to count", "signal", sig.Name, "reason", st.Reason)
		}
		for _, err := range info.Missing {
			p.Log.Info("signal is counted without some counters", "signal", sig.Name, "variant", st.Variant, "reason", err)
		}
		p.Signals = append(p.Signals, st)
	}
}

// canaryBudget is the canary's CPU time in a window: with it, and occasional bursts
// beyond it, the canary uses less than a thousandth of a CPU.
func canaryBudget(c *config.Agent) time.Duration { return c.Sampling.Period / 2000 }

// openTrace sets Parts.Record. It appends, and each sample is in the file at once: what an agent recorded before it
// crashed is what its operator wants to see.
func openTrace(c *config.Agent, p *agent.Parts) (func() error, error) {
	if c.Record == "" {
		return func() error { return nil }, nil
	}
	f, err := os.OpenFile(c.Record, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, daemon.Usage(fmt.Errorf("open trace: %w", err))
	}
	w := trace.NewWriter(f, sample.AllExtras()...).Served()
	if err := w.Continue(c.Record); err != nil {
		return nil, daemon.Usage(fmt.Errorf("open trace: %w", errors.Join(err, f.Close())))
	}
	p.Record = func(s *sample.Sample) error { return errors.Join(w.Write(s), w.Flush()) }
	return func() error { return errors.Join(w.Flush(), f.Close()) }, nil
}

// serve runs the agent with its socket and metrics, and ends all three.
func serve(ctx context.Context, c *config.Agent, log *slog.Logger, a *agent.Agent) error {
	socket, err := agent.ListenSocket(c.Socket, c.SocketGroup)
	if err != nil {
		return denied(daemon.Usage(err), os.Geteuid())
	}
	servers := map[*http.Server]net.Listener{a.SocketServer(): socket}
	var metrics string // the real address: the requested port may be 0
	var taken error    // why there are no metrics yet
	if c.Listen != "" {
		l, err := daemon.Listen("listen", c.Listen)
		switch {
		case err == nil:
			metrics = l.Addr().String()
		case errors.Is(err, syscall.EADDRINUSE):
			taken = err
		default:
			socket.Close()
			return err
		}
		servers[a.MetricsServer()] = l
	}
	// Before the first answer, so that a caller of the API finds the addresses in the log.
	mode, from := a.Mode()
	log.Info("quell-agent started", "version", version, "socket", c.Socket, "metrics", metrics, "mode", mode, "from", from.Text(), "go", runtime.Version())
	// The clients may be any user of the machine: they leave the agent its descriptors.
	bounds := daemon.Bounds{Connections: 64, Answer: time.Minute}
	var wg sync.WaitGroup
	for s, l := range servers {
		wg.Go(func() {
			if l == nil {
				if l = whenFree(ctx, a, c.Listen, taken); l == nil {
					return
				}
			}
			if err := daemon.Serve(s, l, nil, bounds); !errors.Is(err, http.ErrServerClosed) {
				log.Error("serve", "address", l.Addr(), "reason", err)
			}
		})
	}
	manager, closeManager, bad := openNotifier(os.Getenv)
	if bad != nil {
		log.Warn("cannot notify the service manager", "reason", bad)
	}
	manager.send("READY=1")
	wg.Go(func() { manager.watch(ctx, a.Alive) })
	err = a.Run(ctx)
	manager.send("STOPPING=1")
	for s := range servers {
		shut, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		if s.Shutdown(shut) != nil {
			s.Close()
		}
		cancel()
	}
	wg.Wait()
	return errors.Join(err, closeManager())
}

// listenAgain is how often a port that another program has is tried.
const listenAgain = 5 * time.Second

// whenFree listens at an address once the program that has it has left it; nil: ctx has ended. Any user can take
// a port while no agent runs, and must not keep the agent from its work by that.
func whenFree(ctx context.Context, a *agent.Agent, address string, err error) (l net.Listener) {
	for err != nil {
		a.Degrade(ctx, "metrics", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenAgain):
		}
		l, err = daemon.Listen("listen", address)
	}
	a.Degrade(ctx, "metrics", nil)
	return l
}
