//go:build inguest

package xen

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/env"
	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/httpload"
	"github.com/quell-dev/quell/internal/lab/study"
	tools "github.com/quell-dev/quell/internal/lab/xen"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The test binary is also the guests' PID 1, and the programs in them.
func TestMain(m *testing.M) {
	role := ""
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	var err error
	switch role {
	case "lab-agent":
		err = env.AgentMain(os.Args[2:], nil)
	case "lab-hold":
		err = env.WaitAndExec(os.Args[2:])
	case "serve":
		err = serve()
	case "feel":
		err = feel()
	case "burn":
		waiting()
		for {
		}
	default:
		quelltest.Main(m)
	}
	fmt.Println(role, err)
	os.Exit(1)
}

// waiting waits for the barrier, and ends the program when the lab closes its input.
func waiting() {
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		os.Exit(0)
	}
	go func() {
		_, _ = in.ReadByte()
		os.Exit(0)
	}()
}

func serve() error {
	waiting()
	page := strings.Repeat("a", 1024)
	return http.ListenAndServe(":80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) }))
}

// calm stops Go from preempting itself by signals, after which a guest under TCG
// sometimes continues with wrong registers.
const calm = "GODEBUG=asyncpreemptoff=1"

const prefix = "quell-test-xen"

func address(name string) netip.Prefix {
	return netip.MustParsePrefix(map[string]string{"g1": "10.99.0.11/24", "g2": "10.99.0.12/24"}[name])
}

// kernel is the kernel of all domains.
func kernel(t *testing.T) string {
	t.Helper()
	images, err := filepath.Glob("/boot/vmlinux-*")
	if err != nil || len(images) != 1 {
		t.Fatal(images, err)
	}
	return images[0]
}

// bridge is a network in the first domain's own namespace.
type bridge struct{ lab.Link }

func (bridge) Adopt(name string) error {
	out, err := exec.Command("sh", "-c", "brctl addif xenbr0 $0 && ip link set $0 up", name).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// run runs one of Xen's tools and returns the words of each line of its output.
func run(t *testing.T, argv ...string) (lines [][]string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).Output()
	if err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	for line := range strings.Lines(string(out)) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

// recorded records for a time.
func recorded(t *testing.T, x tools.Tools, span time.Duration) *tools.Trace {
	t.Helper()
	r, err := x.Record(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(span)
	trace, err := r.Stop()
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// setShare sets a guest's weight and its cap in per cent of one CPU.
func setShare(t *testing.T, x tools.Tools, role string, weight, limit int) {
	t.Helper()
	_, name := idOf(t, x, role)
	run(t, "xl", "sched-credit", "-d", name, "-w", strconv.Itoa(weight), "-c", strconv.Itoa(limit))
}

// checkShare checks them.
func checkShare(t *testing.T, x tools.Tools, role string, weight, limit int) {
	t.Helper()
	id, name := idOf(t, x, role)
	all := run(t, "xl", "sched-credit")
	want := []string{name, strconv.Itoa(id), strconv.Itoa(weight), strconv.Itoa(limit)}
	if !slices.ContainsFunc(all, func(words []string) bool { return slices.Equal(words, want) }) {
		t.Errorf("%q; want %q", all, want)
	}
}

// inTop returns a guest's figures in the second round of xentop, by column; the first has
// no CPU use.
func inTop(t *testing.T, name string) map[string]float64 {
	t.Helper()
	all := run(t, "xentop", "-b", "-f", "-i", "2", "-d", "2.0")
	figures := map[string]float64{}
	var columns []string
	for _, words := range all {
		switch {
		case len(words) > 0 && words[0] == "NAME":
			columns = words
		case len(words) > 0 && words[0] == name:
			for i, column := range columns[:min(len(columns), len(words))] {
				figures[column], _ = strconv.ParseFloat(words[i], 64) // some columns have no numbers
			}
		}
	}
	return figures
}

func TestDomains(t *testing.T) {
	x := tools.Tools{}
	if s := run(t, "xl", "info", "xen_scheduler"); len(s) != 1 || !slices.Equal(s[0], []string{"credit"}) {
		t.Fatalf("scheduler %q: want credit, the paper's", s)
	}
	o := env.Options{Hold: []string{os.Args[0], "lab-hold"}, Agent: []string{os.Args[0], "lab-agent"}, Prefix: prefix,
		Kernel: func() (guest.Kernel, error) { return guest.At(kernel(t)), nil }}
	maker, err := env.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := maker.Close(); err != nil {
			t.Error(err)
		}
	})
	guests := map[string]lab.Environment{}
	weights := map[string]int{"g1": 512, "g2": 256}
	t.Run("created", func(t *testing.T) {
		for _, name := range []string{"g1", "g2"} {
			began := time.Now()
			e, err := maker.MakeOn(t.Context(), &study.Part{Role: name, Address: address(name).String(),
				Environment: study.Environment{Name: "vm", Driver: study.Xen, CPUs: 1, Memory: 256 << 20, Weight: weights[name], Network: "lan"}}, bridge{})
			if err != nil {
				console(t)
				t.Fatal(err)
			}
			guests[name] = e
			t.Logf("%s answers after %.0f s", name, time.Since(began).Seconds())
		}
		if all := list(t, x); len(all) != 3 {
			t.Errorf("domains %q", all)
		}
	})
	if len(guests) != 2 {
		return
	}
	t.Run("pinned", func(t *testing.T) {
		e := guests["g1"]
		if err := e.Pin([]sample.Set{sample.SetOf(0)}); err != nil {
			t.Fatal(err)
		}
		got, err := e.Pinned()
		if err != nil || len(got) != 1 || got[0].String() != "0" {
			t.Errorf("pinned to %v, %v", got, err)
		}
		all, err := x.VCPUs(t.Context(), "Domain-0")
		if err != nil || all[0].Hard != "all" {
			t.Errorf("the first domain too: %+v, %v", all, err)
		}
		// There is one CPU, so the hypervisor itself must refuse.
		if err := e.Pin([]sample.Set{sample.SetOf(1)}); err == nil {
			t.Error("pinned to a CPU that is not there")
		}
	})
	t.Run("measured", func(t *testing.T) { measured(t, x, guests) })
	t.Run("weighted and capped", func(t *testing.T) { weighted(t, x, guests) })
	t.Run("paused", func(t *testing.T) { paused(t, x, guests["g1"]) })
	t.Run("robbed", func(t *testing.T) { stolen(t, x, guests["g1"]) })
	t.Run("stopped", func(t *testing.T) {
		for _, name := range []string{"g1", "g2"} {
			if err := guests[name].Close(); err != nil {
				t.Error(err)
			}
		}
		if all := list(t, x); len(all) != 1 {
			t.Errorf("domains %q are left", all)
		}
	})
	t.Run("swept", func(t *testing.T) { swept(t, x, maker) })
}

// list are the domains' names.
func list(t *testing.T, x tools.Tools) (names []string) {
	t.Helper()
	all, err := x.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all {
		names = append(names, g.Name)
	}
	return names
}

// console logs the guests' output during boot.
func console(t *testing.T) {
	logs, _ := filepath.Glob("/var/log/xen/*")
	more, _ := filepath.Glob("/var/log/xen/console/*")
	for _, l := range append(logs, more...) {
		if text, err := os.ReadFile(l); err == nil {
			t.Logf("%s:\n%s", l, text[max(0, len(text)-3000):])
		}
	}
}

// start runs a role of this binary in a guest until the test ends, with its output to
// out.
func start(t *testing.T, e lab.Environment, role string, out io.Writer) {
	t.Helper()
	p, err := e.Start(t.Context(), lab.Job{Name: role, Argv: []string{os.Args[0], role}, Env: []string{calm}, WaitsForStart: true, Stdout: out, Stderr: os.Stdout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	if _, _, err := p.Begin(); err != nil {
		t.Fatal(err)
	}
}

// loads sends requests to both guests' servers without a pause until the test ends.
func loads(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for _, name := range []string{"g1", "g2"} {
		url := "http://" + address(name).Addr().String() + "/1k"
		// The server is up once it answers.
		quelltest.Until(t, name+" answers", func() bool {
			resp, err := http.Get(url)
			if err == nil {
				resp.Body.Close()
			}
			return err == nil
		})
		go func() {
			_, err := httpload.Run(ctx, httpload.Options{URL: url, Connections: 4, Duration: 10 * time.Minute, Timeout: 30 * time.Second})
			done <- err
		}()
	}
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}

// idOf finds a guest's ID by the end of its name.
func idOf(t *testing.T, x tools.Tools, role string) (id int, name string) {
	t.Helper()
	all, err := x.List(t.Context())
	i := slices.IndexFunc(all, func(g tools.Guest) bool { return strings.HasSuffix(g.Name, "."+role) })
	if err != nil || i < 0 {
		t.Fatal(role, all, err)
	}
	return all[i].ID, all[i].Name
}

// measured compares the eight measures of two guests that serve pages with their expected
// values and with the values of Xen's other tools.
func measured(t *testing.T, x tools.Tools, guests map[string]lab.Environment) {
	start(t, guests["g1"], "serve", os.Stdout)
	start(t, guests["g2"], "serve", os.Stdout)
	loads(t)
	before := map[string]reading{}
	for name, e := range guests {
		before[name] = read(t, e)
	}
	trace := recorded(t, x, 6*time.Second)
	after := map[string]reading{}
	for name, e := range guests {
		after[name] = read(t, e)
	}
	t.Logf("figure: trace of %.2f s: %d switches (%.0f/s), %d records lost", trace.Span.Seconds(), trace.Switches, trace.PerSecond(trace.Switches), trace.Lost)
	t.Logf("%8s %6s %9s %9s %9s %9s %8s %8s %8s %9s", "domain", "CPU %", "events/s", "of ports", "pages/s", "pages/exe", "wait %", "block %", "sum %", "exe/s")
	show := func(name string, d *tools.Domain) {
		t.Logf("%8s %6.2f %9.0f %9.0f %9.1f %9.3f %8.2f %8.2f %8.2f %9.1f", name, 100*d.Running, trace.PerSecond(d.Events), trace.PerSecond(d.EventChannel),
			trace.PerSecond(d.Grants), d.GrantsPerExecution(), 100*d.Runnable, 100*d.Blocked, 100*d.Sum(), trace.PerSecond(d.Executions))
	}
	if d := trace.Domain(0); d != nil {
		show("dom0", d)
	}
	if trace.Switches == 0 || trace.Span < 5*time.Second {
		t.Errorf("%d switches in %s", trace.Switches, trace.Span)
	}
	for _, name := range []string{"g1", "g2"} {
		id, full := idOf(t, x, name)
		d := trace.Domain(id)
		if d == nil {
			t.Errorf("%s did nothing", name)
			continue
		}
		show(name, d)
		for what, v := range map[string]float64{"CPU": d.Running, "events": float64(d.Events), "event channels": float64(d.EventChannel), "pages": float64(d.Grants),
			"pages per execution": d.GrantsPerExecution(), "waiting": d.Runnable, "blocked": d.Blocked, "executions": float64(d.Executions)} {
			if !(v > 0) {
				t.Errorf("%s: %s is %v", name, what, v)
			}
		}
		for n, v := range d.VCPUs {
			if math.Abs(v.Sum()-1) > 0.01 {
				t.Errorf("%s, virtual CPU %d: running + waiting + blocked = %.2f %%", name, n, 100*v.Sum())
			}
		}
		// The CPU time in the trace compared with the hypervisor's own sum, over a longer
		// time.
		a, b := before[name], after[name]
		share := (b.used - a.used).Seconds() / b.at.Sub(a.at).Seconds()
		t.Logf("%s by xl vcpu-list, over %.1f s: %.2f %%", name, b.at.Sub(a.at).Seconds(), 100*share)
		if math.Abs(share-d.Running) > 0.2 {
			t.Errorf("%s ran %.2f of the trace, and %.2f of the time by xl vcpu-list", name, d.Running, share)
		}
		if top := inTop(t, full); top["CPU(%)"] <= 0 || top["NETTX(k)"] <= 0 || top["NETRX(k)"] <= 0 {
			t.Errorf("xentop of %s: %v", full, top)
		}
	}
}

// reading is the used CPU time, with the middle of the time that the query took.
type reading struct {
	used time.Duration
	at   time.Time
}

func read(t *testing.T, e lab.Environment) reading {
	t.Helper()
	began := time.Now()
	u := used(t, e)
	return reading{u, began.Add(time.Since(began) / 2)}
}

func used(t *testing.T, e lab.Environment) time.Duration {
	t.Helper()
	u, err := e.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return u.Total()
}

// weighted checks that weights and caps are set and take effect.
func weighted(t *testing.T, x tools.Tools, guests map[string]lab.Environment) {
	for name, want := range map[string]int{"g1": 512, "g2": 256} {
		checkShare(t, x, name, want, 0)
	}
	start(t, guests["g1"], "burn", os.Stdout)
	start(t, guests["g2"], "burn", os.Stdout)
	shares := func() (g1, g2 float64) {
		trace := recorded(t, x, 5*time.Second)
		for name, to := range map[string]*float64{"g1": &g1, "g2": &g2} {
			id, _ := idOf(t, x, name)
			if d := trace.Domain(id); d != nil {
				*to = d.Running
			}
		}
		return g1, g2
	}
	g1, g2 := shares()
	t.Logf("weights 512 and 256: %.3f and %.3f of the CPU", g1, g2)
	if ratio := g1 / g2; !(ratio > 1.4 && ratio < 2.8) {
		t.Errorf("twice the weight got %.2f times the CPU", ratio)
	}
	setShare(t, x, "g1", 512, 20)
	checkShare(t, x, "g1", 512, 20)
	g1, g2 = shares()
	t.Logf("capped at 0.2: %.3f, and %.3f without", g1, g2)
	if !(g1 < 0.28 && g2 > g1) {
		t.Errorf("capped at 0.2 it got %.3f, the other %.3f", g1, g2)
	}
}

// paused checks that a paused guest uses no CPU time.
func paused(t *testing.T, x tools.Tools, e lab.Environment) {
	setShare(t, x, "g1", 256, 0)
	start(t, e, "burn", os.Stdout)
	if err := e.Freeze(true); err != nil {
		t.Fatal(err)
	}
	if ready, err := e.Ready(); err != nil || ready {
		t.Errorf("paused, and ready %v, %v", ready, err)
	}
	from := used(t, e)
	for began := time.Now(); time.Since(began) < time.Second; {
		if got := used(t, e); got != from {
			t.Fatalf("used %s while it was paused", got-from)
		}
	}
	if err := e.Freeze(false); err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "it runs again", func() bool { return used(t, e) > from })
}

// swept creates a guest with the name of a dead lab. It checks that the guest is removed
// and that others' guests stay.
func swept(t *testing.T, x tools.Tools, maker *env.Maker) {
	const dead, other = prefix + "-4100000-7", "other-4100000-7"
	if err := os.Mkdir(filepath.Join(os.TempDir(), dead), 0o755); err != nil {
		t.Fatal(err)
	}
	initramfs := filepath.Join(t.TempDir(), "initramfs")
	if err := os.WriteFile(initramfs, []byte("none"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dead + ".e1.g1", other + ".e1.g1"} {
		if _, err := x.Create(t.Context(), tools.Config{Name: name, Kernel: kernel(t), Ramdisk: initramfs, Memory: 256, VCPUs: 1}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := x.Destroy(context.Background(), name); err != nil {
				t.Error(err)
			}
		})
	}
	if err := maker.Sweep(); err != nil {
		t.Error(err)
	}
	if _, err := x.ID(t.Context(), dead+".e1.g1"); !errors.Is(err, tools.ErrNoDomain) {
		t.Errorf("the dead lab's guest: %v", err)
	}
	if _, err := x.ID(t.Context(), other+".e1.g1"); err != nil {
		t.Errorf("another's guest: %v", err)
	}
}
