package remote_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/helper"
	"github.com/quell-dev/quell/internal/lab/remote"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var (
	_ lab.Environment = (*helper.Environment)(nil)
	_ lab.Process     = (*helper.Process)(nil)
)

// long is a lease that a busy machine does not exceed: a guard, where the test is not of a loss.
const long = 4 * time.Minute

// An environment on a host behaves like a local one, and is removed when the host is
// closed.
func TestAnEnvironmentOnAnotherHost(t *testing.T) {
	if !apart(t) {
		return
	}
	f := hosts(t, 1)
	h := f.dial("h0", long)
	if h.Facts.System != "Linux" || h.Facts.Machine == "" {
		t.Errorf("%+v", h.Facts)
	}
	ctx := t.Context()
	e, err := h.Make(ctx, part("fg"))
	if err != nil {
		t.Fatal(err)
	}
	var said, complained quelltest.Output
	p, err := e.Run(ctx, lab.Job{Name: "fg", Argv: []string{"sh", "-c", "echo begun; echo $WHO >&2; echo {me}; sleep 600.1"}, Env: []string{"WHO=you"}, Stdout: &said, Stderr: &complained})
	if err != nil {
		t.Fatal(err)
	}
	if threads, err := e.Threads(); err != nil || len(threads) == 0 {
		t.Errorf("threads %v, %v", threads, err)
	}
	if said.String() != "" {
		t.Errorf("before the barrier it says %q", said.String())
	}
	if at, within, err := p.Begin(); err != nil || time.Since(at) < -within || time.Since(at) > 4*time.Minute || within <= 0 {
		t.Errorf("began %v ± %v: %v", at, within, err)
	}
	quelltest.Until(t, "it speaks", func() bool { return strings.Contains(said.String(), "{me}\n") && complained.String() == "you\n" })
	if _, err := e.Start(ctx, lab.Job{Name: "no", Argv: []string{"no-such-program"}}); !errors.As(err, new(*lab.LackError)) {
		t.Errorf("a program that is not there: %v", err)
	}
	if err := e.Freeze(true); err != nil {
		t.Error(err)
	}
	quelltest.Until(t, "nothing that is frozen wants to run", func() bool {
		ready, err := e.Ready()
		if err != nil {
			t.Fatal(err)
		}
		return !ready
	})
	if err := e.Freeze(false); err != nil {
		t.Error(err)
	}
	if u, err := e.Usage(); err != nil || u.Total() <= 0 {
		t.Errorf("usage %+v, %v", u, err)
	}
	select {
	case <-p.Done():
		t.Errorf("it has ended: %v", p.Err())
	default:
	}
	if err := p.Stop(); err != nil || p.Err() != nil {
		t.Errorf("stop: %v, %v", err, p.Err())
	}
	bad, err := e.Run(ctx, lab.Job{Name: "bad", Argv: []string{"sh", "-c", "exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := bad.Begin(); err != nil {
		t.Error(err)
	}
	<-bad.Done()
	if err := bad.Err(); err == nil || !strings.Contains(err.Error(), "host h0") {
		t.Errorf("a program that fails: %v", err)
	}
	if _, err := e.Run(ctx, lab.Job{Name: "left", Argv: []string{"sleep", "600.2"}}); err != nil {
		t.Fatal(err)
	}
	if len(cgroups(t)) == 0 {
		t.Error("nothing that was made is to be seen: the check below says nothing")
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if left := append(cgroups(t), append(running(t, "600.1"), running(t, "600.2")...)...); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	// On a second connection the helper is already there.
	var times []time.Time
	look := func() {
		all, err := filepath.Glob(f.dir + "/cache/quell/*")
		if err != nil || len(all) != 1 {
			t.Fatalf("pushed: %v, %v", all, err)
		}
		info, err := os.Stat(all[0])
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, info.ModTime())
	}
	look()
	f.dial("h0", long)
	if look(); times[0] != times[1] {
		t.Error("the helper was pushed a second time")
	}
}

// The lab does not connect to a host that presents a key other than the known one, or an
// unknown key.
func TestKeysOfHosts(t *testing.T) {
	if !apart(t) {
		return
	}
	f := hosts(t, 2).ready()
	f.dial("h0", long)
	f.dial("h1", long)
	other := f.inv.Lookup("h1").HostKey
	line := func(key string) string { return "10.76.0.2 " + key + "\n" }
	good := f.inv.Lookup("h0").HostKey
	for _, c := range []struct {
		name, pinned, known string
		want                func(error) bool
	}{
		{"pinned", good, "", func(err error) bool { return err == nil }},
		{"another is pinned", other, "", func(err error) bool {
			var key *remote.KeyError
			return errors.As(err, &key) && key.Known && key.Host == "h0" && strings.HasPrefix(key.Fingerprint, "SHA256:")
		}},
		{"known", "", line(good), func(err error) bool { return err == nil }},
		{"another is known", "", line(other), func(err error) bool { var key *remote.KeyError; return errors.As(err, &key) && key.Known }},
		{"unknown", "", "# nobody\n", func(err error) bool { var key *remote.KeyError; return errors.As(err, &key) && !key.Known }},
		{"no file", "", "", func(err error) bool { var key *remote.KeyError; return errors.As(err, &key) && !key.Known }},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := *f.inv.Lookup("h0")
			spec.HostKey, spec.KnownHosts = c.pinned, filepath.Join(t.TempDir(), "known_hosts")
			if c.known != "" {
				if err := os.WriteFile(spec.KnownHosts, []byte(c.known), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			h, err := remote.Dial(t.Context(), &remote.Inventory{Hosts: []remote.HostConfig{spec}}, "h0", f.options(long))
			if !c.want(err) {
				t.Errorf("%v", err)
			}
			if err == nil {
				if err := h.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A host that is only reachable through another one is reached through it.
func TestThroughAnotherHost(t *testing.T) {
	if !apart(t) {
		return
	}
	f := hosts(t, 1).ready()
	f.dial("h0", long)
	spec := *f.inv.Lookup("h0")
	spec.Name, spec.Jump = "behind", "h0"
	f.inv.Hosts = append(f.inv.Hosts, spec)
	h := f.dial("behind", long)
	if _, err := h.Make(t.Context(), part("fg")); err != nil {
		t.Error(err)
	}
}

// The start-up files of a host's shell may complain, as those that run something else do now and
// then. What they print would be mixed with the helper's messages.
func TestWhatTheLoginShellPrints(t *testing.T) {
	if !apart(t) {
		return
	}
	f := hosts(t, 1).ready()
	startUp := func(text string) {
		if err := os.WriteFile(f.home+"/.bashrc", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	startUp("echo 'cannot rehash' >&2\n")
	f.dial("h0", long)
	startUp("echo Welcome\n")
	if _, err := remote.Dial(t.Context(), f.inv, "h0", f.options(long)); err == nil || !strings.Contains(err.Error(), `prints "Welcome\n" before each command`) {
		t.Errorf("with a greeting: %v", err)
	}
}

// Processes on four hosts begin at one instant although their clocks are hours apart. The
// reported times are correct within their stated error.
func TestTheBarrier(t *testing.T) {
	if !apart(t) {
		return
	}
	f := hosts(t, 4).ready()
	b := f.barrier(t)
	all := b.round(t)
	base, baseNS := role.Instant()
	for i, began := range all {
		// The hosts are this machine, so the true offset of their clocks is known.
		truth := time.Duration(began.There) + f.servers[i].behind - time.Duration(baseNS)
		if off := began.At.Sub(base) - truth; off.Abs() > began.Within {
			t.Errorf("h%d began %v ± %v, which is wrong by %v", i, began.At, began.Within, off)
		}
		if offset, within := b.hosts[i].Clock(); (offset - f.servers[i].behind).Abs() > within {
			t.Errorf("the clock of h%d is %v ± %v behind, in truth %v", i, offset, within, f.servers[i].behind)
		}
	}
}

// barrier is an environment on each host.
type barrier struct {
	hosts []*remote.Host
	envs  []*helper.Environment
}

func (f *farm) barrier(t testing.TB) *barrier {
	b := &barrier{}
	for _, s := range f.servers {
		h := f.dial(s.name, long)
		e, err := h.Make(context.Background(), part("fg"))
		if err != nil {
			t.Fatal(err)
		}
		b.hosts, b.envs = append(b.hosts, h), append(b.envs, e)
	}
	return b
}

func (b *barrier) round(t testing.TB) []helper.BeginResult {
	t.Helper()
	var procs []*helper.Process
	for _, e := range b.envs {
		p, err := e.Run(context.Background(), lab.Job{Name: "fg", Argv: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		procs = append(procs, p)
	}
	all, err := helper.Begin(context.Background(), procs)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		<-p.Done()
		if err := p.Err(); err != nil {
			t.Error(err)
		}
	}
	return all
}

// BenchmarkBarrier measures how far apart processes on four hosts really begin. The hosts
// are this machine, so their clocks can be compared.
func BenchmarkBarrier(b *testing.B) {
	if !apart(b, "-test.run", "^$", "-test.bench", "^BenchmarkBarrier$", "-test.benchtime", fmt.Sprintf("%dx", max(b.N, 100))) {
		return
	}
	f := hosts(b, 4).ready()
	bar := f.barrier(b)
	var skews []time.Duration
	for b.Loop() {
		var first, last time.Duration
		for i, began := range bar.round(b) {
			at := time.Duration(began.There) + f.servers[i].behind
			if i == 0 || at < first {
				first = at
			}
			last = max(last, at)
		}
		skews = append(skews, last-first)
	}
	slices.Sort(skews)
	at := func(q float64) float64 { return skews[int(q*float64(len(skews)-1))].Seconds() * 1e3 }
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(at(1), "max-ms")
}

// A host that is cut off during a run is reported as lost and the others continue.
// Nothing runs there after the lease, and the host can be used again when it is back.
func TestAHostThatIsCutOff(t *testing.T) {
	if !apart(t) {
		return
	}
	const lease = 10 * time.Second
	f := hosts(t, 4).ready()
	var procs []*helper.Process
	var all []*remote.Host
	for i, s := range f.servers {
		// The others must outlive it, however late a busy machine answers them.
		of := long
		if i == 2 {
			of = lease
		}
		h := f.dial(s.name, of)
		all = append(all, h)
		e, err := h.Make(t.Context(), part("fg"))
		if err != nil {
			t.Fatal(err)
		}
		// The process has a child in its own session, and on h2 it is frozen.
		line := fmt.Sprintf("setsid sleep 700.%d & echo up; sleep 700.%d", i, i)
		var said quelltest.Output
		p, err := e.Run(t.Context(), lab.Job{Name: "fg", Argv: []string{"sh", "-c", line}, Stdout: &said})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.Begin(); err != nil {
			t.Fatal(err)
		}
		quelltest.Until(t, "it runs", func() bool { return said.String() == "up\n" && len(running(t, fmt.Sprintf("700.%d", i))) >= 2 })
		if i == 2 {
			if err := e.Freeze(true); err != nil {
				t.Fatal(err)
			}
		}
		procs = append(procs, p)
	}
	before := len(cgroups(t))
	cut := time.Now()
	f.here.Run("ip link set " + f.servers[2].link + " down")
	select {
	case <-procs[2].Done():
	case <-time.After(4 * time.Minute):
		t.Fatal("the loss is not detected")
	}
	noticed := time.Since(cut)
	var lost *remote.LostError
	if err := procs[2].Err(); !errors.As(err, &lost) || lost.Host != "h2" || lost.Lease != lease {
		t.Errorf("the verdict is %v", err)
	}
	if _, err := all[2].Make(t.Context(), part("more")); !errors.As(err, &lost) {
		t.Errorf("a new call: %v", err)
	}
	quelltest.Until(t, "nothing runs there any more", func() bool { return len(running(t, "700.2")) == 0 })
	t.Logf("noticed after %v, all gone there after %v; the lease is %v", noticed.Round(time.Millisecond), time.Since(cut).Round(time.Millisecond), lease)
	quelltest.Until(t, "its cgroups are gone too", func() bool { return len(cgroups(t)) < before })
	for _, i := range []int{0, 1, 3} {
		select {
		case <-procs[i].Done():
			t.Errorf("h%d was not cut off, and its process has ended: %v", i, procs[i].Err())
		default:
		}
		if err := all[i].Err(); err != nil {
			t.Errorf("h%d: %v", i, err)
		}
	}
	f.here.Run("ip link set " + f.servers[2].link + " up")
	again := f.dial("h2", long)
	e, err := again.Make(t.Context(), part("again"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := e.Run(t.Context(), lab.Job{Name: "again", Argv: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Begin(); err != nil {
		t.Error(err)
	}
	<-p.Done()
	if err := p.Err(); err != nil {
		t.Error(err)
	}
}
