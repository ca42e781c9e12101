package host

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/tools/txtar"
)

// seed adds the real files with this base name to the fuzzer's corpus.
func seed(f *testing.F, base string) {
	hosts, err := filepath.Glob("../../../testdata/hosts/*.txtar")
	if err != nil || len(hosts) == 0 {
		f.Fatalf("hosts: %v, %v", hosts, err)
	}
	for _, name := range hosts {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range txtar.Parse(text).Files {
			if filepath.Base(file.Name) == base {
				f.Add(file.Data)
			}
		}
	}
}

func FuzzParseMountinfo(f *testing.F) {
	seed(f, "mountinfo")
	f.Fuzz(func(t *testing.T, text []byte) {
		for name, tree := range parseMountinfo(text, "/host") {
			if name != "" && !isController(name) || tree.dir == "" || tree.top == "" {
				t.Errorf("%q: %+v", name, tree)
			}
		}
	})
}

func FuzzUsageParse(f *testing.F) {
	seed(f, "cpu.stat")
	seed(f, "cpuacct.usage")
	f.Fuzz(func(t *testing.T, text []byte) {
		var u Usage
		if u.parse(text); u.CPU < 0 || u.Throttled < 0 {
			t.Errorf("%+v", u)
		}
	})
}

func FuzzParsePSI(f *testing.F) {
	seed(f, "cpu.pressure")
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := parsePSI(text); err == nil && (p.Some.Total < 0 || p.Full.Total < 0) {
			t.Errorf("%+v", p)
		}
		if d, err := parseStalled(text); d < 0 || err != nil && d != 0 {
			t.Errorf("stalled %v, %v", d, err)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	seed(f, "stat")
	f.Fuzz(func(t *testing.T, text []byte) {
		times, err := parseStat(text)
		for _, c := range times.CPUs {
			if err != nil || c.ID < 0 || c.User < 0 || c.Steal < 0 {
				t.Errorf("%+v, %v", c, err)
			}
		}
	})
}

func FuzzParseCPUInfo(f *testing.F) {
	seed(f, "cpuinfo")
	f.Fuzz(func(t *testing.T, text []byte) {
		if name, _, err := parseCPUInfo(text); err == nil && name == "" {
			t.Error("no name and no error")
		}
	})
}

func FuzzParseProcCgroup(f *testing.F) {
	seed(f, "cgroup")
	f.Fuzz(func(t *testing.T, text []byte) {
		h := &Host{trees: map[string]tree{"cpu": {"/cpu", "/a"}, "": {"/u", "/"}}}
		for name, p := range h.parseProcCgroup(text) {
			if _, ok := h.trees[name]; !ok || p == "" || p[0] != '/' {
				t.Errorf("%q: %q", name, p)
			}
		}
	})
}

func FuzzParseBandwidth(f *testing.F) {
	for _, s := range []string{"max 100000", "-1 100000", "50000 100000", "1 1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q, p, err := parseBandwidth(text)
		if err == nil && (q < -1 || q > maxQuota || p < 1 || p > maxPeriod) {
			t.Errorf("%d %d", q, p)
		}
	})
}

func FuzzParseTextOfProcesses(f *testing.F) {
	seed(f, "cgroup.procs")
	seed(f, "status")
	seed(f, "size")
	f.Fuzz(func(t *testing.T, text []byte) {
		if ids := appendIDs(nil, text); slices.ContainsFunc(ids, func(id int) bool { return id <= 0 }) {
			t.Errorf("ids %v", ids)
		}
		if n := parseSize(string(text)); n < 0 {
			t.Errorf("size %d", n)
		}
		parseAllowed(text)
	})
}
