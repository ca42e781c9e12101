package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/machine/origin"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// machine is a simulated machine in memory, in the time of a synctest bubble: guests with a
// CPU load and a cost, limits in files, one source. It provides all of an agent's inputs.
type machine struct {
	t           testing.TB
	own         string // path of the agent's own cgroup
	guests      []*guest
	inodes      uint64
	fresh       bool
	found       []Found       // by Finder.Find since the newest change
	wait        func() error  // of Finder.Wait
	settled     time.Time     // up to when usage is accounted
	busy        time.Duration // of all guests
	slowTimes   time.Duration // how long reading the machine's times takes, while guests run
	stolen      time.Duration
	values      map[string]string              // file → text
	quotas      map[string]time.Duration       // throttled time of cgroups above guests; only those with a quota
	weights     weights                        // of cgroups that have one
	write       func(file, value string) error // nil: writing works
	reading     error                          // of CPU times
	cpus        sample.Set                     // that tasks may run on
	sysfs       *host.Host
	online      []string      // CPU lists that the source was given
	switches    float64       // context switches a second
	toll        time.Duration // of the source
	switched    uint64        // up to looked
	looked      time.Time
	samples     []sample.Sample // recorded
	finding     error           // of Find
	unread      host.Unread
	unnamed     error
	unwatched   error
	disks       map[string]host.IOLimit // existing limits, by path, of any disk
	controllers error                   // why there are none
	unlimited   error                   // of Cgroup.IOPlace
	blkio       bool                    // v1 limits I/O
	opening     map[string]error        // of Open, by path
	log         bytes.Buffer
}

// guest is a task of the machine.
type guest struct {
	m       *machine
	path    string
	inode   uint64
	load    float64 // CPU-s/s that it wants
	cost    func() float64
	used    time.Duration
	files   int     // open cgroups
	cgroup  *cgroup // the agent's handle
	gone    bool
	split   string
	moves   string // where its processes are in the cpu controller's hierarchy, if not there
	fails   error  // of Usage
	reads   int    // calls of Usage
	looks   int    // calls of Places
	stall   time.Duration
	facts   *origin.Facts        // what is known of it; nil: nothing
	tallied func() time.Duration // of Tally
}

func newMachine(t testing.TB) *machine {
	return &machine{t: t, cpus: sample.SetOf(0, 1), settled: time.Now(), looked: time.Now(), switched: 1, values: map[string]string{}, opening: map[string]error{}}
}

func (m *machine) add(path string, load float64) *guest {
	m.settle()
	m.inodes++
	g := &guest{m: m, path: path, inode: m.inodes, load: load, cost: func() float64 { return math.NaN() }}
	m.guests = append(m.guests, g)
	m.values[g.limit()] = "max"
	m.fresh = true
	return g
}

func (g *guest) limit() string { return "/cg" + g.path + "/cpu.max" }

// rate is the CPU usage that it gets, at most its load.
func (g *guest) rate() float64 {
	text := g.m.values[g.limit()]
	if text == "max" || text == "" {
		return g.load
	}
	limit, err := strconv.ParseFloat(text, 64)
	if err != nil {
		g.m.t.Errorf("%s is limited to %q", g.path, text)
	}
	return min(g.load, limit)
}

// settle accounts the usage up to now; call it before a rate changes.
func (m *machine) settle() {
	now := time.Now()
	past := now.Sub(m.settled)
	if m.settled = now; past == 0 {
		return
	}
	for _, g := range m.guests {
		d := time.Duration(g.rate() * float64(past))
		g.used += d
		m.busy += d
	}
}

func (g *guest) set(load float64) { g.m.settle(); g.load = load }

// remove ends the guest, as rmdir does.
func (g *guest) remove() {
	g.m.settle()
	g.gone, g.m.fresh = true, true
	delete(g.m.values, g.limit())
	g.m.guests = slices.DeleteFunc(g.m.guests, func(x *guest) bool { return x == g })
}

// finder implements Finder with the rules of a configuration.
type finder struct {
	m *machine
	c *config.Agent
}

func (f finder) Find(time.Time) (found []Found, fresh bool, err error) {
	if f.m.finding != nil {
		return nil, false, f.m.finding
	}
	fresh, f.m.fresh = f.m.fresh, len(f.m.opening) > 0
	if !fresh {
		return f.m.found, false, nil
	}
	for _, g := range f.m.guests {
		facts := g.facts
		if facts == nil {
			facts = &origin.Facts{}
		}
		if v := f.c.Classify(g.path, facts); v.Rule != nil {
			found = append(found, Found{Hierarchy: sample.Unified, Path: g.path, Inode: g.inode, Verdict: v, Facts: facts, Own: g.path == f.m.own})
		}
	}
	f.m.found = found
	return found, true, nil
}

func (f finder) Wait() func() error { return f.m.wait }

func (f finder) Open(t Found) (Cgroup, error) {
	if err := f.m.opening[t.Path]; err != nil {
		return nil, err
	}
	for _, g := range f.m.guests {
		if g.inode == t.Inode {
			g.files++
			g.cgroup = &cgroup{guest: g, open: true}
			return g.cgroup, nil
		}
	}
	return nil, host.ErrGone
}

func (f finder) Unwatched() error { return f.m.unwatched }

func (f finder) Unread() host.Unread { return f.m.unread }

func (f finder) Unnamed() error { return f.m.unnamed }

// cgroup implements Cgroup.
type cgroup struct {
	*guest
	open, kept bool
}

func (c *cgroup) Dir() string                      { return "/cg" + c.path }
func (c *cgroup) Members() ([]int, error)          { return nil, nil }
func (c *cgroup) Below() ([]uint64, error)         { return nil, nil }
func (c *cgroup) AllowedCPUs() (sample.Set, error) { return c.m.cpus, nil }
func (c *cgroup) Threads() (int, error)            { return 3, nil }

func (c *cgroup) Usage() (host.Usage, error) {
	switch {
	case !c.open:
		return host.Usage{}, errors.New("read after close")
	case c.gone:
		return host.Usage{}, host.ErrGone
	case c.fails != nil:
		return host.Usage{}, c.fails
	}
	c.m.settle()
	c.reads++
	return host.Usage{CPU: c.used}, nil
}

func (c *cgroup) Tally() (time.Duration, error) { return c.tallied(), nil }

func (c *cgroup) CPUTime() func() (time.Duration, error) { return nil }

func (c *cgroup) Stalled(resource string) (time.Duration, error) {
	if resource != "cpu" || c.stall < 0 {
		return 0, host.ErrNoPSI
	}
	return c.stall, nil
}

func (c *cgroup) Places() (host.Places, error) {
	c.looks++
	if c.gone && c.moves != "" { // where it is has to be read
		return host.Places{}, host.ErrGone
	}
	return host.Places{CPU: cmp.Or(c.moves, c.path), Unified: c.path, Split: c.split != "", Reason: c.split}, nil
}

func (c *cgroup) KeepOpen(yes bool) error { c.kept = yes; return nil }

func (c *cgroup) OpenFiles() int {
	if c.kept {
		return keptFiles
	}
	return 0
}

func (c *cgroup) Close() error {
	if !c.open {
		return errors.New("closed twice")
	}
	c.open = false
	c.files--
	return nil
}

// ReadAccounts and EndAccounts implement Machine: each cgroup is read by itself.
func (m *machine) ReadAccounts() error { return nil }
func (m *machine) EndAccounts()        {}

// CPUTimes implements Machine.
func (m *machine) CPUTimes() (host.CPUTimes, error) {
	if m.reading != nil {
		return host.CPUTimes{}, m.reading
	}
	if m.slowTimes > 0 {
		<-time.After(m.slowTimes)
	}
	m.settle()
	m.switched += uint64(m.switches * time.Since(m.looked).Seconds())
	m.looked = time.Now()
	return host.CPUTimes{Total: host.CPUTime{User: m.busy, Steal: m.stolen}, Switches: m.switched}, nil
}

// CapWrites implements Machine.
func (m *machine) CapWrites(p string, rate float64, _ time.Duration) (string, uint64, []host.Write, error) {
	for _, g := range m.guests {
		if g.path == p {
			return "/cg" + p, g.inode, []host.Write{{File: g.limit(), Old: m.values[g.limit()], New: fmt.Sprint(rate)}}, nil
		}
	}
	return "", 0, nil, host.ErrGone
}

// Online implements Machine; without sysfs the CPUs are unknown.
func (m *machine) Online() (sample.Set, error) {
	if m.sysfs == nil {
		return nil, nil
	}
	return m.sysfs.Online()
}

// Topology implements Machine.
func (m *machine) Topology() (host.Topology, error) {
	if m.sysfs == nil {
		return host.Topology{}, nil
	}
	return m.sysfs.Topology()
}

// Throttled implements Machine.
func (m *machine) Throttled(p string) (time.Duration, error) {
	if d, ok := m.quotas[p]; ok {
		return d, nil
	}
	return 0, host.ErrNoLimit
}

// Weight implements Machine.
func (m *machine) Weight(p string) (float64, error) {
	if w, ok := m.weights[p]; ok {
		return w, nil
	}
	return 0, host.ErrNoLimit
}

// ReadValue and what follows implement enforce.Files.
func (m *machine) ReadValue(file string) (string, error) {
	if v, ok := m.values[file]; ok {
		return v, nil
	}
	return "", fs.ErrNotExist
}

func (m *machine) WriteValue(file, value string) error {
	if _, ok := m.values[file]; !ok {
		return fs.ErrNotExist
	}
	if m.write != nil {
		if err := m.write(file, value); err != nil {
			return err
		}
	}
	m.settle()
	m.values[file] = value
	return nil
}

func (m *machine) Inode(dir string) (uint64, error) {
	for _, g := range m.guests {
		if "/cg"+g.path == dir {
			return g.inode, nil
		}
	}
	return 0, syscall.ENOENT
}

func (m *machine) BootID() (string, error) { return "boot", nil }
func (m *machine) Hold(...string) error    { return nil }
func (m *machine) Release(...string)       {}
func (m *machine) Held(string) bool        { return false }

// rig is an agent on such a machine.
type rig struct {
	*machine
	config   *config.Agent
	enforcer *enforce.Enforcer
	source   *source
	agent    *Agent
	end      func() error
	// descriptors is Parts.Descriptors.
	descriptors func() (open, limit int, err error)
	uplink      Uplink
	random      func() float64 // Parts.Random
	signals     []api.SignalStatus
	// asMachine makes a source of the machine from the rig's, which is then not used
	// itself; nil keeps that.
	asMachine func(*source) counter.MachineSource
}

// unforeseen makes the rig's windows open at random moments, which the seed determines.
func (r *rig) unforeseen(seed uint64) { r.random = rand.New(rand.NewPCG(seed, 9)).Float64 }

// baseRules are the rig's rules: the path determines job and class.
const baseRules = `
sampling: {duration: 10s, period: 1m}
spec: {min_samples: 10}
rules:
  - {match: "/web/*", job: web, class: latency-sensitive}
  - {match: "/kept/**", job: kept, class: batch, protected: true}
  - {match: "/batch/*-*", job: $1, class: batch}
  - {match: "/sys/*", class: batch, never_cap: true}
  - {match: "/left/*", class: best-effort}
  - {match: "/batch/*/web-*", job: inner, class: latency-sensitive}
  - {match: "/batch/*/kept-*", job: inner, class: batch, protected: true}
  - {match: "/batch/*/sys-*", job: inner, class: batch, never_cap: true}
  - {match: "/batch/*/job-*", job: inner, class: batch}
`

// newRig configures an agent for a machine; start runs it. dir holds its state.
func newRig(t testing.TB, m *machine, dir string, settings ...string) *rig {
	t.Helper()
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte(baseRules), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, nil, append([]string{"state_dir=" + dir, "machine=m1", "signals=cpi"}, settings...))
	if err != nil {
		t.Fatal(err)
	}
	return &rig{machine: m, config: c, source: m.source(sample.CPI), signals: []api.SignalStatus{{Signal: sample.CPI, Variant: "by-heart", OK: true}}}
}

// start opens the journal and runs the agent until stop, or the test's end.
func (r *rig) start() {
	r.t.Helper()
	var err error
	if r.enforcer, err = enforce.Open(filepath.Join(r.config.StateDir, "journal"), r.machine); err != nil {
		r.t.Fatal(err)
	}
	r.fresh = true
	topology, err := r.Topology()
	if err != nil {
		r.t.Fatal(err)
	}
	sources, machine := []counter.Source{r.source}, []counter.MachineSource(nil)
	if r.asMachine != nil {
		sources, machine = nil, []counter.MachineSource{r.asMachine(r.source)}
	}
	r.agent, err = New(Parts{Config: r.config, Version: "test", Platform: "p", Topology: topology, Machine: r.machine, Finder: finder{r.machine, r.config},
		Sources: sources, MachineSources: machine, SharedDisks: r.source.sharedDisks, Descriptors: r.descriptors, Enforcer: r.enforcer, Log: slog.New(slog.NewTextHandler(&r.log, nil)),
		Signals: r.signals,
		Record: func(s *sample.Sample) error {
			kept := *s
			kept.Served = slices.Clone(s.Served) // the agent overwrites it
			r.samples = append(r.samples, kept)
			return nil
		}, Uplink: r.uplink, Random: r.random})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.agent.Run(ctx) }()
	r.end = func() error {
		cancel()
		return errors.Join(<-done, r.enforcer.Close())
	}
	synctest.Wait()
}

// stop ends the agent as SIGTERM does.
func (r *rig) stop() {
	r.t.Helper()
	if err := r.end(); err != nil {
		r.t.Errorf("stop: %v", err)
	}
	for _, g := range r.guests {
		if g.files != 0 {
			r.t.Errorf("%s has %d files open after the stop", g.path, g.files)
		}
	}
}

// pass lets time pass. The loop first sees what the test has done to the machine.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	if err := r.agent.ask(context.Background(), func() {}); err != nil {
		r.t.Fatal(err)
	}
	<-time.After(d)
	synctest.Wait()
}

// status asks the agent for its status.
func (r *rig) status() (s api.Status) {
	r.t.Helper()
	r.get(api.PathStatus, &s)
	return s
}

func (r *rig) incidents() (all []incident.Record) {
	r.t.Helper()
	all, err := logbook.Load(r.config.StateDir)
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// task returns one task as the API shows it.
func (r *rig) task(name string) api.TaskView {
	r.t.Helper()
	var all []api.TaskView
	r.get(api.PathTasks, &all)
	i := slices.IndexFunc(all, func(v api.TaskView) bool { return string(v.Name) == name })
	if i < 0 {
		r.t.Fatalf("no task %s in %+v", name, all)
	}
	return all[i]
}

// accused lets time pass until a task is capped that the newest incident accuses, not
// only for a trial, and returns that round.
func (r *rig) accused(within time.Duration) *incident.Round {
	r.t.Helper()
	for range within / (10 * time.Second) {
		r.pass(10 * time.Second)
		if len(r.enforcer.Active()) == 0 { // saves reading the incidents
			continue
		}
		if all := r.incidents(); len(all) > 0 && len(all[len(all)-1].Rounds) > 0 {
			rounds := all[len(all)-1].Rounds
			if last := rounds[len(rounds)-1]; !last.Trial && last.Ended == 0 {
				return last
			}
		}
	}
	r.t.Fatalf("no task was accused and capped within %s: %+v", within, r.incidents())
	return nil
}

// spec is the agent's current spec of a job.
func (r *rig) spec(job sample.JobName) (s spec.Spec) {
	r.t.Helper()
	err := r.agent.ask(context.Background(), func() {
		s, _ = r.agent.pipeline.History().Lookup(spec.Key{Job: job, Platform: "p", Signal: sample.CPI, Variant: "by-heart"}, sample.At(time.Now()))
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) get(path string, out any) {
	r.t.Helper()
	if status, body := r.call("GET", path, nil); status != http.StatusOK {
		r.t.Fatalf("GET %s: %d %s", path, status, body)
	} else if err := json.Unmarshal(body, out); err != nil {
		r.t.Fatalf("GET %s: %v in %s", path, err, body)
	}
}

// call makes a request as the operator ann.
func (r *rig) call(method, path string, in any) (int, []byte) {
	r.t.Helper()
	text, ok := in.(string)
	if !ok && in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			r.t.Fatal(err)
		}
		text = string(b)
	}
	ctx := context.WithValue(context.Background(), peerKey{}, "ann")
	w := httptest.NewRecorder()
	r.agent.SocketServer().Handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(text)))
	return w.Code, w.Body.Bytes()
}

// audit returns the lines of the audit log.
func (r *rig) audit() (all []auditEntry) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.config.StateDir, "audit.jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var e auditEntry
		if err := json.Unmarshal(line, &e); err != nil {
			r.t.Fatalf("audit log: %v in %q", err, line)
		}
		all = append(all, e)
	}
	return all
}

// suffering adds a latency-sensitive victim whose cost rises by 1.5 for each CPU-s/s
// that the antagonist gets over 0.1.
func (r *rig) suffering(antagonist *guest) *guest {
	v := r.add("/web/1", 0.5)
	n := 0
	v.cost = func() float64 {
		n++
		return 1 + 0.01*float64(n%5) + 1.5*max(0, antagonist.rate()-0.1)
	}
	return v
}

// learn passes the time in which the victim's job gets its spec, while the antagonist
// is quiet. It ends half a minute before a window opens.
func (r *rig) learn() {
	r.t.Helper()
	r.pass(12*time.Minute - 30*time.Second)
	if s := r.spec("web"); s.State != spec.Ready || s.Samples != 12 {
		r.t.Fatalf("after 12 samples the spec is %+v", s)
	}
	if all := r.incidents(); len(all) != 0 {
		r.t.Fatalf("incidents while all was quiet: %+v", all)
	}
}
