package host

import (
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/quell-dev/quell/internal/core/sample"
)

func TestParseMountinfo(t *testing.T) {
	for _, c := range []struct {
		name, root, text string
		want             map[string]tree
	}{
		{"hybrid, controllers together", "/",
			"31 30 0:28 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw,nsdelegate\n" +
				"33 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:2 - cgroup cgroup rw,cpu,cpuacct\n" +
				"34 30 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n",
			map[string]tree{"": {"/sys/fs/cgroup/unified", "/"}, "cpu": {"/sys/fs/cgroup/cpu,cpuacct", "/"}, "cpuacct": {"/sys/fs/cgroup/cpu,cpuacct", "/"}}},
		{"escaped, no optional fields, no final newline", "/",
			`31 30 0:28 / /mnt/a\040b\134c rw - cgroup2 none rw`,
			map[string]tree{"": {`/mnt/a b\c`, "/"}}},
		{"the top wins over a part, the first over the second", "/",
			"1 1 0:1 /docker/x /part rw - cgroup cgroup rw,cpu\n1 1 0:1 / /first rw - cgroup cgroup rw,cpu\n1 1 0:1 / /second rw - cgroup cgroup rw,cpu\n",
			map[string]tree{"cpu": {"/first", "/"}}},
		{"only a part, as in a container", "/",
			"1 1 0:1 /docker/x /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
			map[string]tree{"cpu": {"/sys/fs/cgroup/cpu", "/docker/x"}}},
		{"hidden by a later mount", "/",
			"1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n1 1 0:2 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n",
			map[string]tree{}},
		{"the host's, seen in a container below /host", "/host",
			"1 1 0:1 / /host/sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			map[string]tree{"": {"/sys/fs/cgroup", "/"}}},
		{"nonsense", "/", "1 2\n - \nx - cgroup2\n\n", map[string]tree{}},
	} {
		got := parseMountinfo([]byte(c.text), c.root)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(tree{})); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.name, diff)
		}
	}
}

func TestProcCgroupInAContainerSeesOnlyItsPart(t *testing.T) {
	h := &Host{trees: map[string]tree{"cpu": {"/cg/cpu", "/docker/x"}, "": {"/cg2", "/"}}}
	for text, want := range map[string]map[string]string{
		"4:cpu,cpuacct:/docker/x\n0::/a:b\n":      {"cpu": "/", "": "/a:b"},
		"4:cpu:/docker/x/y\n":                     {"cpu": "/y"},
		"4:cpu:/docker/xy\n0::/gone (deleted)\n":  {},
		"4:cpu\n:::\nfour\n7:name=systemd:/a\n\n": {},
	} {
		if diff := cmp.Diff(want, h.parseProcCgroup([]byte(text))); diff != "" {
			t.Errorf("%q: -want +got\n%s", text, diff)
		}
	}
}

func TestUsageParse(t *testing.T) {
	for text, want := range map[string]Usage{
		"usage_usec 1500\nuser_usec 1000\nsystem_usec 500\nnr_periods 9\nnr_throttled 2\nthrottled_usec 30\n": {1500 * time.Microsecond, 30 * time.Microsecond},
		"nr_periods 9\nnr_throttled 2\nthrottled_time 30\nnr_bursts 0\nburst_time 0\n":                        {0, 30},
		"123456789\n": {CPU: 123456789},
		"usage_usec 9999999999999999999\nnr_throttled 99999999999999999999\nusage_usec\nusage_usec -1\n": {CPU: math.MaxInt64},
		"": {},
	} {
		var got Usage
		if got.parse([]byte(text)); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func TestParseStalled(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"some avg10=1.27 avg60=1.12 avg300=0.75 total=9684323\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=7\n": 9684323 * time.Microsecond,
		"full avg10=0.10 avg60=0.00 avg300=0.00 total=7\nsome avg10=1.00 avg60=0.00 avg300=0.00 total=1":         time.Microsecond,
	} {
		if got, err := parseStalled([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, bad := range []string{"", "some", "some avg10=1", "some total=", "some total=-1", "some total=1x", "full total=7\n", "somewhat total=7\n"} {
		if got, err := parseStalled([]byte(bad)); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func TestParsePSI(t *testing.T) {
	got, err := parsePSI([]byte("some avg10=1.27 avg60=1.12 avg300=0.75 total=9684323\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=7\n"))
	want := PSI{Stall{1.27, 9684323 * time.Microsecond}, Stall{0.1, 7 * time.Microsecond}}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := parsePSI([]byte("some avg10=1.00 avg60=0.00 avg300=0.00 total=1\n")); err != nil || got.Full != (Stall{}) {
		t.Errorf("without full, before 5.13: %+v, %v", got, err)
	}
	for _, bad := range []string{"", "full avg10=0.00\n", "some avg10=x\n", "some total=-1\n"} {
		if got, err := parsePSI([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestParseStat(t *testing.T) {
	got, err := parseStat([]byte("cpu  10 2 3 400 5 6 7 8 9 0\ncpu3 10 2 3 400 5 6 7 8 9 0\nintr 1 2\nctxt 5\n"))
	line := CPUTime{-1, 100 * time.Millisecond, 20 * time.Millisecond, 30 * time.Millisecond, 4 * time.Second, 50 * time.Millisecond, 60 * time.Millisecond, 70 * time.Millisecond, 80 * time.Millisecond}
	cpu3 := line
	cpu3.ID = 3
	if err != nil || got.Total != line || !slices.Equal(got.CPUs, []CPUTime{cpu3}) || got.Switches != 5 {
		t.Errorf("%+v, %v", got, err)
	}
	if got.Total.Busy() != 280*time.Millisecond {
		t.Errorf("busy %v", got.Total.Busy())
	}
	if got, err := parseStat([]byte("cpu 1 2 3 4\n")); err != nil || got.Total.Steal != 0 || got.Total.Idle != 40*time.Millisecond {
		t.Errorf("an old kernel's four fields: %+v, %v", got, err)
	}
	for _, bad := range []string{"", "cpu 1 2 3 4\nctxt -1\n", "cpu0 1 2 3 4\n", "cpu 1 2 3\n", "cpu 1 2 x 4\n", "cpux 1 2 3 4\n", "cpu99999999 1 2 3 4\n"} {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestParseCPUInfo(t *testing.T) {
	const amd = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: x\nstepping\t: 1\nflags\t\t: fpu hypervisor\n"
	const arm = "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n"
	for _, c := range []struct {
		text, name string
		hypervisor bool
	}{
		{amd + "\n" + amd, "AuthenticAMD-25-1-1", true},
		{strings.ReplaceAll(amd, " hypervisor", ""), "AuthenticAMD-25-1-1", false},
		{arm, "arm-0x41-0xd0c-3-1", false},
		{arm + "\n" + strings.ReplaceAll(arm, "0xd0c", "0xd05") + "\n" + arm, "arm-0x41-0xd05-3-1+arm-0x41-0xd0c-3-1", false},
	} {
		name, hypervisor, err := parseCPUInfo([]byte(c.text))
		if name != c.name || hypervisor != c.hypervisor || err != nil {
			t.Errorf("%q, %v, %v; want %q", name, hypervisor, err, c.name)
		}
	}
	if name, _, err := parseCPUInfo([]byte("processor : 0\ncpu : POWER9\n")); err == nil {
		t.Errorf("POWER9 is %q", name)
	}
}

func TestPlatformTellsVirtualMachinesOnArm(t *testing.T) {
	const arm = "-- proc/self/mountinfo --\n-- proc/cpuinfo --\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n"
	for files, want := range map[string]string{
		"":                                 "arm-0x41-0xd0c-3-1",
		"-- sys/hypervisor/type --\nxen\n": "arm-0x41-0xd0c-3-1-vm",
		"-- proc/device-tree/hypervisor/compatible --\nlinux,kvm\n":                                            "arm-0x41-0xd0c-3-1-vm",
		"-- sys/class/dmi/id/sys_vendor --\nAmazon EC2\n-- sys/class/dmi/id/product_name --\nm6g.large\n":      "arm-0x41-0xd0c-3-1-vm",
		"-- sys/class/dmi/id/sys_vendor --\nAmazon EC2\n-- sys/class/dmi/id/product_name --\nm6g.metal\n":      "arm-0x41-0xd0c-3-1",
		"-- sys/class/dmi/id/sys_vendor --\nHetzner\n-- sys/class/dmi/id/product_name --\nvServer\n":           "arm-0x41-0xd0c-3-1-vm",
		"-- sys/class/dmi/id/sys_vendor --\nRed Hat\n-- sys/class/dmi/id/product_name --\nOpenStack Compute\n": "arm-0x41-0xd0c-3-1-vm",
		"-- sys/class/dmi/id/sys_vendor --\nX\n-- sys/class/dmi/id/product_name --\nKVM Virtual Machine\n":     "arm-0x41-0xd0c-3-1-vm",
		"-- sys/class/dmi/id/sys_vendor --\nAmpere\n-- sys/class/dmi/id/product_name --\nMt. Jade Platform\n":  "arm-0x41-0xd0c-3-1",
	} {
		h := unpack(t, txtar.Parse([]byte(arm+files)))
		if got, err := h.Platform(); string(got) != want || err != nil {
			t.Errorf("%q: %s, %v; want %s", files, got, err, want)
		}
	}
}

// Caches of CPUs that differ in their highest level may have equal ids, and arm64 has no ids.
func TestCachesWithoutUsableIDsGetTheirLowestCPU(t *testing.T) {
	const head = "-- proc/self/mountinfo --\n-- sys/devices/system/cpu/online --\n0-3\n"
	index := func(cpu, level, id, cpus string) string {
		dir := "-- sys/devices/system/cpu/cpu" + cpu + "/cache/index0/"
		text := dir + "type --\nUnified\n" + dir + "level --\n" + level + "\n" + dir + "shared_cpu_list --\n" + cpus + "\n"
		if id != "" {
			text += dir + "id --\n" + id + "\n"
		}
		return text
	}
	for _, c := range []struct {
		name, files, want string
	}{
		{"the kernel's", index("0", "3", "4", "0-1") + index("1", "3", "4", "0-1") + index("2", "3", "8", "2-3") + index("3", "3", "8", "2-3"), "4,8"},
		{"levels differ", index("0", "3", "0", "0-1") + index("1", "3", "0", "0-1") + index("2", "2", "0", "2-3") + index("3", "2", "0", "2-3"), "0,2"},
		{"no ids", index("0", "3", "", "0-1") + index("1", "3", "", "0-1") + index("2", "3", "", "2-3") + index("3", "3", "", "2-3"), "0,2"},
		{"nothing known of two", index("0", "3", "7", "0-1") + index("1", "3", "7", "0-1"), "7"},
	} {
		topology, err := unpack(t, txtar.Parse([]byte(head+c.files))).Topology()
		if caches, _, _ := topology.Units(); caches.String() != c.want || err != nil {
			t.Errorf("%s: caches %s, %v; want %s", c.name, caches, err, c.want)
		}
	}
}

func TestValuesAreReadAndWrittenButFilesNeverMade(t *testing.T) {
	h := unpack(t, txtar.Parse([]byte("-- proc/self/mountinfo --\n-- cg/cpu.max --\n100000 100000\n")))
	if err := h.WriteValue("/cg/cpu.max", "max 5"); err != nil {
		t.Fatal(err)
	}
	if got, err := h.ReadValue("/cg/cpu.max"); got != "max 5" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := h.WriteValue("/cg/other", "1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("write to a file that is not there: %v", err)
	}
	if _, err := os.Stat(h.Path("/cg/other")); err == nil {
		t.Error("the file was made")
	}
	if _, err := h.Inode("/cg/cpu.max"); err == nil {
		t.Error("a file passed for a directory")
	}
	if _, err := h.Inode("/no"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("inode of nothing: %v", err)
	}
}

func TestOpenNeedsMountinfo(t *testing.T) {
	if _, err := Open(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty directory opens: %v", err)
	}
	h := unpack(t, txtar.Parse([]byte("-- proc/self/mountinfo --\n")))
	if h.Layout().Kind != None {
		t.Errorf("layout %+v", h.Layout())
	}
	if _, err := h.OpenCgroup(0, "/a"); !errors.Is(err, ErrNoHierarchy) {
		t.Errorf("a cgroup without cgroups: %v", err)
	}
	for _, c := range h.Capabilities() {
		if !c.OK && c.Reason == "" {
			t.Errorf("%s is missing without a reason", c.Name)
		}
	}
}

// A task's cgroup may be called as if it was removed. Its processes are the task's nevertheless, which
// must not hide by that from a limit.
func TestPlacesOfANameLikeRemoved(t *testing.T) {
	const own = "box/own (deleted)"
	cgroups := "2:cpu:/" + own + "\n0::/" + own + "\n"
	a := &txtar.Archive{}
	for name, text := range map[string]string{
		"proc/self/mountinfo":              "25 23 0:22 / /unified rw - cgroup2 cgroup2 rw\n26 23 0:23 / /cpu rw - cgroup cgroup rw,cpu\n",
		"proc/7/cgroup":                    cgroups,
		"proc/8/cgroup":                    "2:cpu:/gone\n0::/gone (deleted)\n",
		"unified/box/cpu.stat":             "usage_usec 1\n",
		"unified/box/cgroup.procs":         "",
		"unified/" + own + "/cgroup.procs": "7\n",
		"cpu/box/cgroup.procs":             "",
		"cpu/" + own + "/cgroup.procs":     "7\n",
	} {
		a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(text)})
	}
	h := unpack(t, a)
	if got, err := open(t, h, sample.Unified, "/box").Places(); err != nil || got.CPU != "/box" || got.Split {
		t.Errorf("Places() = %+v, %v", got, err)
	}
	text, err := os.ReadFile(h.Path("/proc/8/cgroup"))
	if diff := cmp.Diff(map[string]string{"cpu": "/gone"}, h.parseProcCgroup(text)); err != nil || diff != "" {
		t.Errorf("a cgroup that was removed: %v, %s", err, diff)
	}
}

// TestAttackPlacesOfManyProcesses: of a task with more processes than are looked at, the others are not read, and no place
// is taken for the whole task's that is not.
func TestAttackPlacesOfManyProcesses(t *testing.T) {
	for _, c := range []struct {
		name        string
		third       string // where the third process is
		there       string // the threads of /x
		all, capped string // the place, if all are looked at, and if two are
	}{
		{"together", "/x", "7\n8\n9\n", "/x", "/x"},
		{"one is elsewhere", "/y", "7\n8\n", "", ""},
		{"one came back since it was read", "/y", "7\n8\n9\n", "", "/x"},
	} {
		a := &txtar.Archive{}
		for name, text := range map[string]string{
			"proc/self/mountinfo":        "25 23 0:22 / /unified rw - cgroup2 cgroup2 rw\n26 23 0:23 / /cpu rw - cgroup cgroup rw,cpu\n",
			"proc/7/cgroup":              "2:cpu:/x\n0::/box\n",
			"proc/8/cgroup":              "2:cpu:/x\n0::/box\n",
			"proc/9/cgroup":              "2:cpu:" + c.third + "\n0::/box\n",
			"proc/9/stat":                "9 (c) S 1\n",
			"unified/box/cpu.stat":       "usage_usec 1\n",
			"unified/box/cgroup.procs":   "7\n8\n9\n",
			"unified/box/cgroup.threads": "7\n8\n9\n",
			"cpu/x/cgroup.procs":         c.there,
			"cpu/x/tasks":                c.there,
			"cpu/x/cpu.stat":             "nr_periods 0\n",
		} {
			a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(text)})
		}
		box := open(t, unpack(t, a), sample.Unified, "/box")
		for most, want := range map[int]string{3: c.all, 2: c.capped} {
			if got, err := box.findPlaces(most); err != nil || got.CPU != want || got.Split != (want == "") {
				t.Errorf("%s, %d looked at: %+v, %v; want %q", c.name, most, got, err, want)
			}
		}
	}
}
