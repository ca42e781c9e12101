package observe

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// tree creates a host from files.
func tree(t *testing.T, files map[string]string) *host.Host {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		put(t, root, name, text)
	}
	if _, ok := files["/proc/self/mountinfo"]; !ok {
		put(t, root, "/proc/self/mountinfo", "")
	}
	h, err := host.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func put(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// still is an environment that reports fixed values.
type still struct {
	lab.Environment
	usage   lab.Usage
	threads []int
}

func (s *still) Usage() (lab.Usage, error) { return s.usage, nil }
func (s *still) Threads() ([]int, error)   { return s.threads, nil }
func (s *still) Pin([]sample.Set) error    { return nil }

// watched returns an observer of two parts, on CPUs 0 and 1 of four, over files.
func watched(t *testing.T, change func(c *study.Cell, o *Options)) (*Observer, *still, *still) {
	t.Helper()
	h := tree(t, map[string]string{
		"/sys/devices/system/cpu/online": "0-3",
		"/proc/cpuinfo":                  "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t: 1\nstepping\t: 1\n",
		"/proc/vmstat":                   "pswpin 0\npswpout 0\noom_kill 0\n",
		"/proc/stat":                     "cpu 0 0 0 0\n",
	})
	o := Options{Host: h, Observe: study.Observe{Sets: []string{"cpu", "psi", "schedstat", "net"}}, Run: study.Run{MaxForeignCPU: 0.05, MaxSteal: 0.05}}
	cell := &study.Cell{For: 10 * time.Second, Parts: []study.Part{{Role: "fg"}, {Role: "bg"}}}
	if change != nil {
		change(cell, &o)
	}
	fg, bg := &still{}, &still{}
	obs, err := o.open(lab.Observed{Cell: cell, Names: []string{"fg", "bg"}, Envs: []lab.Environment{fg, bg}, Start: time.Now(),
		Sets: [][]sample.Set{{sample.SetOf(0)}, {sample.SetOf(1)}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := obs.Close(nil); err != nil {
			t.Error(err)
		}
	})
	return obs, fg, bg
}

func TestForeignTimeIsWhatNobodyOfTheRunUsed(t *testing.T) {
	o, _, _ := watched(t, nil)
	at := time.Now()
	a := machine{at: at, usage: make([]lab.Usage, 2)}
	b := machine{at: at.Add(10 * time.Second), busy: 16 * time.Second, lab: time.Second, steal: 2 * time.Second, irq: 400 * time.Millisecond,
		usage: []lab.Usage{{User: 8 * time.Second, System: time.Second}, {User: 4 * time.Second}}}
	o.confined = true
	got := o.between(a, b)
	// 16 of 20 CPU seconds, minus 13 of the parts and 1 of the lab.
	if want := (shares{foreign: 0.1, steal: 0.1, irq: 0.02}); math.Abs(got.foreign-want.foreign) > 1e-9 || math.Abs(got.steal-want.steal) > 1e-9 || math.Abs(got.irq-want.irq) > 1e-9 {
		t.Errorf("%+v, want %+v", got, want)
	}
	// The lab may have used its second elsewhere: then it hides none of another process.
	o.confined = false
	if got := o.between(a, b); math.Abs(got.foreign-0.15) > 1e-9 {
		t.Errorf("foreign = %v with other CPUs for the lab, want 0.15", got.foreign)
	}
	b.usage[0].User = 15 * time.Second // rounding must not make it negative
	if got := o.between(a, b); got.foreign != 0 {
		t.Errorf("foreign = %v, want 0", got.foreign)
	}
}

func TestVerdictOfTheWindow(t *testing.T) {
	idle := func(*machine) {}
	tests := map[string]struct {
		end  func(b *machine)
		cell func(c *study.Cell, o *Options)
		want result.Reason
		role string
	}{
		"nothing":           {end: idle},
		"foreign, enough":   {end: func(b *machine) { b.busy = 1200 * time.Millisecond }, want: result.ForeignCPU},
		"foreign, bearable": {end: func(b *machine) { b.busy = 900 * time.Millisecond }},
		"foreign, allowed":  {end: func(b *machine) { b.busy = 1200 * time.Millisecond }, cell: func(_ *study.Cell, o *Options) { o.Run.MaxForeignCPU = 0.1 }},
		"steal":             {end: func(b *machine) { b.steal = 1200 * time.Millisecond }, want: result.Steal},
		"swap":              {end: func(b *machine) { b.swapOut = 257 }, want: result.Swap},
		"swap, a little":    {end: func(b *machine) { b.swapIn = 200 }},
		"oom":               {end: func(b *machine) { b.oomKill = 1 }, want: result.OOM},
		"throttled":         {end: func(b *machine) { b.usage[1].Throttled = time.Millisecond }, want: result.Throttled, role: "bg"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o, _, _ := watched(t, test.cell)
			at := time.Now()
			a := machine{at: at, usage: make([]lab.Usage, 2)}
			b := machine{at: at.Add(10 * time.Second), usage: make([]lab.Usage, 2)}
			test.end(&b)
			o.checkFinal(a, b, time.Second)
			o.checkFinal(a, b, time.Second) // is reported once only
			if test.want == "" {
				if len(o.found) > 0 {
					t.Errorf("%+v", o.found)
				}
				return
			}
			if len(o.found) != 1 || o.found[0].Reason != test.want || o.found[0].Role != test.role || o.found[0].Value <= o.found[0].Bound || o.found[0].Text == "" {
				t.Errorf("%+v, want %s of %q", o.found, test.want, test.role)
			}
		})
	}
}

// A violation that the rest of the window can still undo is not reported before its end.
func TestEarlyVerdict(t *testing.T) {
	for _, test := range []struct {
		length time.Duration
		busy   time.Duration // in the first second of two CPUs
		want   bool
	}{
		{10 * time.Second, 900 * time.Millisecond, false}, // 4.5 % of the whole
		{10 * time.Second, 1100 * time.Millisecond, true}, // 5.5 %
		{100 * time.Second, 2 * time.Second, false},
		{0, 2 * time.Second, false}, // the length is not known
	} {
		o, _, _ := watched(t, func(c *study.Cell, _ *Options) { c.For = test.length })
		o.opened = machine{at: time.Now(), usage: make([]lab.Usage, 2)}
		o.checkEarly(machine{at: o.opened.at.Add(time.Second), busy: test.busy, usage: make([]lab.Usage, 2)}, 0)
		if got := len(o.found) > 0; got != test.want {
			t.Errorf("%v of %v: %+v", test.busy, test.length, o.found)
		}
	}
}

func TestWindowOverFiles(t *testing.T) {
	o, fg, _ := watched(t, nil)
	h := o.opt.Host
	if err := o.Window(true); err != nil {
		t.Fatal(err)
	}
	// CPU 0: 100 ticks of user time; CPU 2 belongs to no part.
	if err := os.WriteFile(h.Path("/proc/stat"), []byte("cpu 0 0 0 0\ncpu0 100 0 0 0\ncpu1 0 0 0 0 0 0 0 50\ncpu2 9999 0 0 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	fg.usage = lab.Usage{User: 900 * time.Millisecond}
	s, evidence := o.Second(o.of.Start.Add(time.Second))
	for _, name := range []string{"cpu.fg", "cpu.user.fg", "cpu.bg", "cpu.foreign", "cpu.steal", "cpu.lab", "swap.in", "clock.offset"} {
		if _, ok := s.Values[name]; !ok {
			t.Errorf("no %s in %v", name, slices.Sorted(maps.Keys(s.Values)))
		}
	}
	if s.Values["cpu.fg"] <= 0 || s.Values["cpu.bg"] != 0 || s.Values["cpu.steal"] <= 0 {
		t.Errorf("%v", s.Values)
	}
	if _, ok := s.Values["psi.cpu.some"]; ok {
		t.Error("pressure where the kernel keeps none")
	}
	_ = evidence // no time has passed: everything is over its bound
	if err := o.Window(false); err != nil {
		t.Fatal(err)
	}
}

func TestParsesNet(t *testing.T) {
	h := tree(t, map[string]string{"/proc/self/net/dev": `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0
  eth0:1296 12 0 3 0 0 0 0 900 9 0 4 0 0 0 0
`})
	want := map[string]float64{"net.eth0.rx_bytes": 1296, "net.eth0.rx_packets": 12, "net.eth0.rx_dropped": 3,
		"net.eth0.tx_bytes": 900, "net.eth0.tx_packets": 9, "net.eth0.tx_dropped": 4}
	if got := readNet(h); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestSharedPath(t *testing.T) {
	for _, test := range [][3]string{
		{"/a/b", "/a/b", "/a/b"}, {"/a/b", "/a/c", "/a"}, {"/a/b", "/ab", "/"}, {"/", "/a", "/"}, {"/a/b/c", "/a/b", "/a/b"},
	} {
		if got := shared(test[0], test[1]); got != test[2] {
			t.Errorf("shared(%q, %q) = %q, want %q", test[0], test[1], got, test[2])
		}
	}
}

// Steps of 3 s with the first second cut off, of an event that counts 100 a second in the
// first step and 300 in the second, read each second but for a gap: 200 and 600 between the
// cuts, and nothing for the third, in which a reading is 3 s late.
func TestEventsOfSteps(t *testing.T) {
	p := &part{events: []*eventCounter{{name: "cycles"}, {name: "gone"}}}
	var total float64
	for s := range 13 {
		if s > 0 {
			total += map[bool]float64{true: 100, false: 300}[s <= 3]
		}
		if s != 8 && s != 9 {
			p.tallied = append(p.tallied, tallied{time.Duration(s) * time.Second, map[string]float64{"cycles": total}})
		}
	}
	var steps []study.Step
	for k := range 3 {
		from := time.Duration(k) * 3 * time.Second
		steps = append(steps, study.Step{From: from, To: from + 3*time.Second, Settle: time.Second})
	}
	got := p.inSteps(steps)
	want := []map[string]float64{{"cycles": 200}, {"cycles": 600}, {}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	// Between two readings a count is interpolated: half a second of the first step.
	if got := p.inSteps([]study.Step{{From: 500 * time.Millisecond, To: time.Second}}); got[0]["cycles"] != 50 {
		t.Errorf("%v", got)
	}
}
