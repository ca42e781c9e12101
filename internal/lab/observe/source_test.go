package observe

import (
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestRAPLWraps(t *testing.T) {
	h := tree(t, map[string]string{
		"/sys/class/powercap/intel-rapl:0/name":                  "package-0",
		"/sys/class/powercap/intel-rapl:0/energy_uj":             "900000",
		"/sys/class/powercap/intel-rapl:0/max_energy_range_uj":   "1000000",
		"/sys/class/powercap/intel-rapl:0:0/name":                "core",
		"/sys/class/powercap/intel-rapl:0:0/energy_uj":           "5",
		"/sys/class/powercap/intel-rapl:0:0/max_energy_range_uj": "1000000",
	})
	e, err := openEnergy(h, study.Observe{Sets: []string{"energy"}})
	if err != nil || e == nil || len(e.zones) != 1 || !strings.Contains(e.source, "RAPL") {
		t.Fatalf("%+v, %v", e, err)
	}
	at := time.Now()
	e.read(at)
	set := func(v string) {
		if err := os.WriteFile(h.Path("/sys/class/powercap/intel-rapl:0/energy_uj"), []byte(v), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set("950000")
	e.read(at.Add(time.Second))
	set("50000") // 50000 to the wrap, 50000 after it
	e.read(at.Add(2 * time.Second))
	if got := e.total(); math.Abs(got-0.15) > 1e-9 {
		t.Errorf("%v J, want 0.15", got)
	}
	// Half of the first second, and all of the second.
	if j, source := e.between(at.Add(500*time.Millisecond), at.Add(2*time.Second)); math.Abs(j-0.125) > 1e-9 || source == "" {
		t.Errorf("%v J of %q, want 0.125", j, source)
	}
	if _, source := e.between(at, at.Add(time.Minute)); source != "" {
		t.Error("energy of an interval without a reading")
	}
}

func TestNoEnergy(t *testing.T) {
	h := tree(t, nil)
	e, err := openEnergy(h, study.Observe{Sets: []string{"energy"}})
	if e != nil || err != nil {
		t.Fatalf("%+v, %v", e, err)
	}
	e.read(time.Now())
	if j, source := e.between(time.Now(), time.Now()); j != 0 || source != "" || e.fresh() || e.close() != nil {
		t.Errorf("%v J of %q", j, source)
	}
}

func TestMeter(t *testing.T) {
	at := time.Unix(1000, 0)
	lines := "5\nnonsense\n-1\n100\n50\n"
	m := &meter{}
	m.follow(strings.NewReader(lines), func() time.Time { at = at.Add(2 * time.Second); return at })
	looks := m.readings()
	if len(looks) != 3 || looks[1].joules != 200 || looks[2].joules != 300 {
		t.Errorf("%+v: want 100 W and 50 W for 2 s each, after the first word", looks)
	}
}

func TestMeterIsEnded(t *testing.T) {
	h := tree(t, nil)
	e, err := openEnergy(h, study.Observe{Meter: "while :; do echo 40; sleep 0.02; done"})
	if err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "the meter says something", func() bool { e.read(time.Now()); return e.fresh() })
	pid := e.meter.cmd.Process.Pid
	if err := e.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
		t.Error("the meter is still there")
	}
}

func TestKernelLog(t *testing.T) {
	for _, test := range []struct {
		record string
		grave  bool
	}{
		{"6,339,5140900,-;NET: Registered PF_INET6\n SUBSYSTEM=net", false},
		{"4,340,1,-;mce: CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)", true},
		{"0,341,1,-;watchdog: BUG: soft lockup - CPU#1 stuck for 22s!", true},
		{"3,1,1,-;blk_update_request: I/O error, dev sda, sector 0", true},
		{"2,1,1,-;anything critical", true},
		{"3,1,1,-;perf: interrupt took too long (2500 > 2495)", false},
		{"4,1,1,-;clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc' as unstable because", true},
		{"12,1,1,-;soft lockup, says a program of facility 1", false},
		{"no record", false},
		{"x,1;soft lockup", false},
	} {
		var lines []logLine
		if l, ok := parseLog(test.record); ok {
			lines = append(lines, l)
		}
		e := judgeKernel(lines)
		if (e != nil) != test.grave || e != nil && e.Reason != result.KernelLog {
			t.Errorf("%q: %+v", test.record, e)
		}
	}
}

func TestClock(t *testing.T) {
	for _, test := range []struct {
		change clock
		bad    bool
	}{
		{clock{}, false},
		{clock{offset: 500 * time.Microsecond}, false}, // slewed at 500 ppm
		{clock{offset: -20 * time.Millisecond}, true},
		{clock{offset: time.Hour}, true},
		{clock{suspend: time.Second, offset: time.Second}, true},
	} {
		if e := test.change.judge(); (e != nil) != test.bad || e != nil && e.Reason != result.ClockStep {
			t.Errorf("%+v: %+v", test.change, e)
		}
	}
	a, err := readClock()
	if err != nil {
		t.Fatal(err)
	}
	b, err := readClock()
	if err != nil {
		t.Fatal(err)
	}
	if d := b.since(a); d.offset.Abs() > time.Second {
		t.Errorf("two looks at once are %v apart", d.offset)
	}
}

func TestCachesLost(t *testing.T) {
	now := 70 * time.Nanosecond
	c := &caches{pairs: [][2]int{{0, 1}}, trip: func(int, int) (time.Duration, error) { return now, nil }}
	shared, apart := study.Placement{Relation: "same-llc"}, study.Placement{Relation: "neutral"}
	c.measure()
	now = 90 * time.Nanosecond
	c.measure()
	if e := c.judge(shared); e != nil {
		t.Errorf("%+v", e)
	}
	now = 380 * time.Nanosecond
	c.measure()
	if e := c.judge(shared); e == nil || e.Reason != result.CacheLost {
		t.Errorf("%+v", e)
	}
	if e := c.judge(apart); e != nil {
		t.Errorf("%+v where no cache was promised", e)
	}
	v := map[string]float64{}
	if c.values(v); v["cache.0-1"] != 380 {
		t.Errorf("%v", v)
	}
}
