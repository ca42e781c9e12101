package observe

import (
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab"
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

// A package whose counter is also reached by memory is one package.
func TestRAPLCountsAPackageOnce(t *testing.T) {
	files := map[string]string{}
	for zone, name := range map[string]string{"intel-rapl-mmio:0": "package-0", "intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:2": "psys"} {
		files["/sys/class/powercap/"+zone+"/name"] = name
		files["/sys/class/powercap/"+zone+"/energy_uj"] = "1"
	}
	zones := raplZones(tree(t, files))
	if len(zones) != 2 || !strings.HasSuffix(zones[0].file, "intel-rapl:0/energy_uj") || !strings.HasSuffix(zones[1].file, "intel-rapl:1/energy_uj") {
		t.Errorf("%d zones", len(zones))
	}
	delete(files, "/sys/class/powercap/intel-rapl:0/name")
	delete(files, "/sys/class/powercap/intel-rapl:0/energy_uj")
	if zones := raplZones(tree(t, files)); len(zones) != 2 {
		t.Errorf("%d zones with one by memory alone", len(zones))
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

// ACPI's sensor of the machine's input power comes before RAPL, and not the sensor of a device;
// each reading is the power since the one before.
func TestPowerMeterOfHwmon(t *testing.T) {
	h := tree(t, map[string]string{
		"/sys/class/powercap/intel-rapl:0/name":      "package-0",
		"/sys/class/powercap/intel-rapl:0/energy_uj": "1",
		"/sys/class/hwmon/hwmon0/name":               "amdgpu",
		"/sys/class/hwmon/hwmon0/power1_average":     "9000000",
		"/sys/class/hwmon/hwmon1/name":               "power_meter",
		"/sys/class/hwmon/hwmon1/power1_average":     "200000000",
	})
	e, err := openEnergy(h, study.Observe{Sets: []string{"energy"}})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	e.read(at)
	e.read(at.Add(2 * time.Second))
	put(t, h.Path("/"), "/sys/class/hwmon/hwmon1/power1_average", "100000000")
	e.read(at.Add(3 * time.Second))
	if j, source := e.between(at, at.Add(3*time.Second)); math.Abs(j-500) > 1e-6 || source != "power meters of hwmon, 1" {
		t.Errorf("%v J by %q, want 500", j, source)
	}
}

// The meter called ipmitool reads the server's sensor, here a program that prints what a
// Supermicro server's ipmitool printed (github.com/ateodorescu/home-assistant-ipmi, issue 13).
func TestMeterOfIpmitool(t *testing.T) {
	dir := t.TempDir()
	script := `#!/bin/sh
[ "$*" = "dcmi power reading" ] && cat <<END

    Instantaneous power reading:                   109 Watts
    Minimum during sampling period:                 38 Watts
    Maximum during sampling period:                242 Watts
    Average power reading over sample period:      102 Watts
    IPMI timestamp:                           10/12/23 13:29:17 CEST    Sampling period:                          00065530 Seconds.
END
`
	if err := os.WriteFile(dir+"/ipmitool", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	e, err := openEnergy(tree(t, nil), study.Observe{Meter: "ipmitool"})
	if err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "two readings", func() bool { e.read(time.Now()); return e.fresh() })
	a, b := e.readings[0], e.readings[1]
	if watts := (b.joules - a.joules) / b.at.Sub(a.at).Seconds(); math.Abs(watts-109) > 1e-6 {
		t.Errorf("%v W, want 109", watts)
	}
	if err := e.close(); err != nil {
		t.Error(err)
	}
}

// A machine on which nothing of the run is, e.g. the host of guests, says how busy it is, and
// makes no run invalid.
func TestObservingAMachineWithoutParts(t *testing.T) {
	h := tree(t, map[string]string{
		"/sys/devices/system/cpu/online": "0-1",
		"/proc/cpuinfo":                  "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t: 1\nstepping\t: 1\n",
		"/proc/vmstat":                   "pswpin 0\npswpout 0\noom_kill 0\n",
		"/proc/stat":                     "cpu 0 0 0 0\n",
	})
	o, err := Options{Host: h, Observe: study.Observe{Sets: []string{"cpu"}}}.open(lab.Observed{Cell: &study.Cell{For: time.Second}, Start: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	a := machine{at: at}
	b := machine{at: at.Add(10 * time.Second), busy: 15 * time.Second, steal: 4 * time.Second, oomKill: 1}
	v := map[string]float64{}
	o.values(v, a, b)
	if v["cpu.busy"] != 0.75 || v["cpu.steal"] != 0.2 {
		t.Errorf("%v", v)
	}
	if _, ok := v["cpu.foreign"]; ok {
		t.Error("there is no foreign CPU time where all of it is")
	}
	o.checkFinal(a, b, time.Second)
	if evidence, err := o.Close(nil); len(evidence) > 0 || err != nil {
		t.Errorf("%+v, %v", evidence, err)
	}
}
