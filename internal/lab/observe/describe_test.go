package observe

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
)

func machineFiles() map[string]string {
	return map[string]string{
		"/sys/devices/system/cpu/online": "0-1",
		"/proc/cpuinfo":                  "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t: 79\nmodel name\t: Intel(R) Xeon(R)\nstepping\t: 1\nmicrocode\t: 0xb000040\n",
		"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
		"/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance",
		"/sys/devices/system/cpu/intel_pstate/no_turbo":         "1",
		"/sys/kernel/mm/transparent_hugepage/enabled":           "always [madvise] never",
		"/proc/sys/kernel/numa_balancing":                       "1",
		"/proc/sys/kernel/random/boot_id":                       "4b1c",
		"/proc/stat":                                            "cpu 100 0 0 100\ncpu0 50 0 0 50\ncpu1 50 0 0 50\n",
		"/proc/meminfo":                                         "MemTotal: 2048 kB\nMemAvailable: 1024 kB\nSwapTotal: 100 kB\nSwapFree: 96 kB\n",
		"/proc/cmdline":                                         "quiet rdinit=/bin/agent isolcpus=2-3 -- --listen 0.0.0.0:2024\n",
		"/proc/loadavg":                                         "1.50 1.0 0.5 1/100 1",
	}
}

func describe(t *testing.T, h *host.Host) Description {
	t.Helper()
	return Describe(h, map[string]string{"quell.commit": "abc"})
}

func TestDescribe(t *testing.T) {
	h := tree(t, machineFiles())
	d := describe(t, h)
	for name, want := range map[string]string{
		"cpu.model": "Intel(R) Xeon(R)", "cpu.microcode": "0xb000040", "cpu.governor": "performance (1), powersave (1)",
		"cpu.turbo": "off", "numa.balancing": "1", "memory.total": "2048 kB", "memory.swap_used": "4 kB", "quell.commit": "abc", "irq.balancer": "none",
		"kernel.cmdline": "quiet isolcpus=2-3",
	} {
		if got, ok := d.Get(name); !ok || got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	for _, i := range d.Items {
		if (i.Missing != "") == (i.Value != "") && i.Value != "" {
			t.Errorf("%+v has both a value and a reason to have none", i)
		}
		if i.Missing != "" && strings.Contains(i.Missing, h.Path("/")) {
			t.Errorf("%s tells where the machine is mounted: %s", i.Name, i.Missing)
		}
	}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var back Description
	if err := json.Unmarshal(text, &back); err != nil || back.Hash() != d.Hash() || len(back.Diff(d)) > 0 {
		t.Errorf("through JSON: %v, %v", back.Diff(d), err)
	}
}

func TestDiffAndHash(t *testing.T) {
	h := tree(t, machineFiles())
	before := describe(t, h)
	put(t, h.Path("/"), "/proc/sys/kernel/random/boot_id", "77aa")
	if d := describe(t, h); d.Hash() != before.Hash() || !slices.Equal(d.Diff(before), []string{"~ kernel.boot_id: 4b1c → 77aa"}) {
		t.Errorf("another boot: %v", d.Diff(before))
	}
	put(t, h.Path("/"), "/proc/sys/kernel/numa_balancing", "0")
	if err := os.Remove(h.Path("/sys/devices/system/cpu/intel_pstate/no_turbo")); err != nil {
		t.Fatal(err)
	}
	d := describe(t, h)
	want := []string{"cpu.turbo: off → (missing: neither intel_pstate nor cpufreq reports it)", "numa.balancing: 1 → 0", "~ kernel.boot_id: 4b1c → 77aa"}
	if got := d.Diff(before); !slices.Equal(got, want) {
		t.Errorf("diff:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if d.Hash() == before.Hash() {
		t.Error("another machine has the same hash")
	}
}

// A guest that runs, the disks' order after a boot, and disks that come and go make no other machine.
func TestTheSameMachine(t *testing.T) {
	files := machineFiles()
	files[cpus+"/vulnerabilities/itlb_multihit"], files[cpus+"/vulnerabilities/meltdown"] = "KVM: Mitigation: VMX disabled", "Mitigation: PTI"
	files["/sys/block/sda/device/model"], files["/sys/block/sdb/device/model"] = "SSD", "HDD"
	before := describe(t, tree(t, files))
	if got, _ := before.Get("disk.model"); got != "HDD (1), SSD (1)" {
		t.Errorf("disk.model = %q", got)
	}
	files[cpus+"/vulnerabilities/itlb_multihit"] = "KVM: Mitigation: Split huge pages"
	files["/sys/block/sda/device/model"], files["/sys/block/sdb/device/model"] = "HDD", "SSD"
	files["/sys/block/sdc/device/model"], files["/sys/block/sdc/removable"] = "Virtual Floppy", "1"
	files["/sys/block/nbd0/queue/scheduler"] = "none"
	if d := describe(t, tree(t, files)); d.Hash() != before.Hash() {
		t.Errorf("another machine: %v", d.Diff(before))
	}
	files[cpus+"/vulnerabilities/meltdown"] = "Vulnerable"
	if d := describe(t, tree(t, files)); d.Hash() == before.Hash() {
		t.Error("another mitigation, and the same machine")
	}
	for kind, same := range map[string]bool{"xen": true, "": false} { // with guests of Xen the first domain has less memory
		files := machineFiles()
		files["/sys/hypervisor/type"] = kind
		before := describe(t, tree(t, files))
		files["/proc/meminfo"] = strings.Replace(files["/proc/meminfo"], "MemTotal: 2048", "MemTotal: 1024", 1)
		if d := describe(t, tree(t, files)); (d.Hash() == before.Hash()) != same {
			t.Errorf("hypervisor %q: less memory is the same machine: %t; %v", kind, !same, d.Diff(before))
		}
	}
}

// The description of this machine is the same a moment later.
func TestDescribeThisMachine(t *testing.T) {
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	d, again := Describe(h, nil), Describe(h, nil)
	if d.Hash() != again.Hash() {
		t.Errorf("changed within a moment: %v", again.Diff(d))
	}
	names := map[string]bool{}
	for _, i := range d.Items {
		if names[i.Name] {
			t.Errorf("%s is there twice", i.Name)
		}
		names[i.Name] = true
		t.Logf("%s = %s %s", i.Name, i.Value, i.Missing)
	}
	if _, ok := d.Get("kernel.release"); !ok {
		t.Error("no kernel.release")
	}
}

func TestKnobsComeBackAfterACrash(t *testing.T) {
	h := tree(t, machineFiles())
	k := Knobs{h}
	var before map[string]string
	want := map[string]string{"governor": "performance", "thp": "never", "numa_balancing": "0", "irqbalance": "stopped"}
	files := []string{"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
		"/sys/kernel/mm/transparent_hugepage/enabled", "/proc/sys/kernel/numa_balancing"}
	read := func() map[string]string {
		all := map[string]string{}
		for _, f := range files {
			text, err := k.ReadValue(f)
			if err != nil {
				t.Fatal(err)
			}
			all[f] = text
		}
		return all
	}
	before = read()
	dir := t.TempDir()
	e, err := enforce.Open(dir, k)
	if err != nil {
		t.Fatal(err)
	}
	now := sample.At(time.Now())
	if _, err := k.Set(e, now, now+1e6, want, "test"); err != nil {
		t.Fatal(err)
	}
	if got := read(); got[files[0]] != "performance" || got[files[2]] != "never" || got[files[3]] != "0" {
		t.Errorf("after Set: %v", got)
	}
	if err := e.Close(); err != nil { // restores nothing
		t.Fatal(err)
	}
	if e, err = enforce.Open(dir, k); err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.RestoreAll(now, "after a crash"); err != nil {
		t.Fatal(err)
	}
	if got := read(); !maps.Equal(got, before) {
		t.Errorf("after RestoreAll: %v, want %v", got, before)
	}
}

func TestKnobsAreSetAllOrNone(t *testing.T) {
	h := tree(t, machineFiles())
	k := Knobs{h}
	e, err := enforce.Open(t.TempDir(), k)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	now := sample.At(time.Now())
	for name, want := range map[string]map[string]string{
		"not there": {"governor": "performance", "ksm": "1"},
		"unknown":   {"governor": "performance", "what": "1"},
		"value":     {"governor": "performance", "thp": "sometimes"},
	} {
		if _, err := k.Set(e, now, now+1e6, want, "test"); err == nil {
			t.Errorf("%s: no error", name)
		}
		if len(e.Active()) > 0 {
			t.Errorf("%s: left %v", name, e.Active())
		}
	}
	// The second of the two knobs is already held by another change.
	if _, err := k.Set(e, now, now+1e6, map[string]string{"thp": "never"}, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Set(e, now, now+1e6, map[string]string{"numa_balancing": "0", "thp": "always"}, "b"); err == nil {
		t.Error("two hold one knob")
	}
	if got, _ := h.ReadValue("/proc/sys/kernel/numa_balancing"); got != "1" {
		t.Errorf("numa_balancing = %s after a refusal, want 1", got)
	}
}

func TestChosen(t *testing.T) {
	for text, want := range map[string]string{"always [madvise] never": "madvise", "1": "1", "[a": "[a", "": "", "x [y z]": "x [y z]"} {
		if got := chosen(text); got != want {
			t.Errorf("chosen(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestProblemsOfPreconditions(t *testing.T) {
	good := study.Preconditions{
		Require: map[string]string{"idle_cpu": ">=97%", "swap_used": "0", "mem_available": "> 1.5GiB", "governor": "performance", "ntp_offset": "<=10ms", "temperature": "<70°C", "cpus": ">=2"},
		Set:     map[string]string{"numa_balancing": "0"}}
	if got := Problems(good); len(got) > 0 {
		t.Errorf("%v", got)
	}
	bad := study.Preconditions{
		Require: map[string]string{"idle_cpu": "97", "swap_use": "0", "thp": "maybe", "mem_total": ">= GiB"},
		Prefer:  map[string]string{"load": "<=1%"},
		Set:     map[string]string{"idle_cpu": "1", "ksm": "5"}}
	var keys []string
	for _, p := range Problems(bad) {
		keys = append(keys, p.Key)
		if p.Want == "" {
			t.Errorf("%s: does not say what is wanted", p.Key)
		}
	}
	want := []string{"preconditions.prefer.load", "preconditions.require.idle_cpu", "preconditions.require.mem_total", "preconditions.require.swap_use",
		"preconditions.require.thp", "preconditions.set.idle_cpu", "preconditions.set.ksm"}
	if !slices.Equal(keys, want) {
		t.Errorf("%v, want %v", keys, want)
	}
}

func TestMeasure(t *testing.T) {
	h := tree(t, machineFiles())
	p := study.Preconditions{
		Require: map[string]string{"cpus": ">=2", "swap_used": "<=4KiB", "numa_balancing": "1", "load": "<1.5"},
		Prefer:  map[string]string{"thp": "never", "swap_used": "0", "mem_available": ">=1MiB", "ksm": "0", "temperature": "<70C", "thp_defrag": "never"}}
	unmet, err := Measure(t.Context(), h, p, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range unmet {
		line := u.String()
		if u.Required {
			line = "! " + line
		}
		got = append(got, line)
	}
	want := []string{"! load is 1.5, wanted <1.5", "ksm is not available, wanted 0", "swap_used is 4096B, wanted 0",
		"temperature is unknown: no sensor in /sys/class/thermal, wanted <70C", "thp is madvise, wanted never", "thp_defrag is not available, wanted never"}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestShareOfTime(t *testing.T) {
	m := &cpuInterval{span: 10 * time.Second, last: host.CPUTimes{Total: host.CPUTime{Idle: 15 * time.Second, IOWait: 3 * time.Second, Steal: time.Second}, CPUs: make([]host.CPUTime, 2)}}
	if got, err := m.idle(); err != nil || got != 90 {
		t.Errorf("idle %v %%, %v; want 90", got, err)
	}
	if got, err := m.steal(); err != nil || got != 5 {
		t.Errorf("steal %v %%, %v; want 5", got, err)
	}
}

func FuzzBound(f *testing.F) {
	f.Add(">=97%", "%")
	f.Add("< 1.5 GiB", "B")
	f.Add("0", "s")
	f.Fuzz(func(t *testing.T, text, unit string) {
		b, err := parseBound(text, quantity{unit: unit})
		if err == nil && (b.value != b.value || !slices.Contains(operators, b.op)) {
			t.Errorf("%q: %+v", text, b)
		}
	})
}
