package config

import (
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// TestDefaultRules: the paths that the common managers use, as seen on real machines.
func TestDefaultRules(t *testing.T) {
	const (
		none = iota
		best
		batch
		never // batch, never capped
	)
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	const uid = "5e9b1f5c_7f3c_4a44_9d5a_b7f7c0c7a001"
	const podUID = "5e9b1f5c-7f3c-4a44-9d5a-b7f7c0c7a001"
	for _, c := range []struct {
		path string
		want int
	}{
		// Kubernetes, cgroupfs driver.
		{"/kubepods", none},
		{"/kubepods/besteffort", none},
		{"/kubepods/besteffort/pod" + podUID, none},
		{"/kubepods/besteffort/pod" + podUID + "/" + id, best},
		{"/kubepods/besteffort/pod" + podUID + "/" + id + "/nested", none},
		{"/kubepods/burstable", none},
		{"/kubepods/burstable/pod" + podUID, none},
		{"/kubepods/burstable/pod" + podUID + "/" + id, batch},
		{"/kubepods/burstable/pod" + podUID + "/" + id + "/init.scope", none},
		{"/kubepods/pod" + podUID, none},
		{"/kubepods/pod" + podUID + "/" + id, batch},
		// Kubernetes, systemd driver.
		{"/kubepods.slice", none},
		{"/kubepods.slice/kubepods-besteffort.slice", none},
		{"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uid + ".slice", none},
		{"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uid + ".slice/cri-containerd-" + id + ".scope", best},
		{"/kubepods.slice/kubepods-burstable.slice", none},
		{"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid + ".slice", none},
		{"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uid + ".slice/crio-" + id + ".scope", batch},
		{"/kubepods.slice/kubepods-pod" + uid + ".slice", none},
		{"/kubepods.slice/kubepods-pod" + uid + ".slice/docker-" + id + ".scope", batch},
		{"/kubepods.slice/kubepods-pod" + uid + ".slice/docker-" + id + ".scope/inner", none},
		// Virtual machines.
		{"/machine.slice", none},
		{`/machine.slice/machine-qemu\x2d7\x2dweb.scope`, batch},
		{`/machine.slice/machine-qemu\x2d7\x2dweb.scope/libvirt/vcpu0`, none},
		{`/machine.slice/machine-testing.slice/machine-qemu\x2d7\x2dweb.scope`, batch},
		{`/machine.slice/machine-testing.slice/machine-qemu\x2d7\x2dweb.scope/libvirt/vcpu0`, none},
		{"/machine", none},
		{"/machine/qemu-7-web.libvirt-qemu", batch},
		{"/machine/qemu-7-web.libvirt-qemu/emulator", none},
		{"/machine.slice/libpod-" + id + ".scope", batch},
		{"/machine.slice/libpod-" + id + ".scope/container", none},
		// Containers.
		{"/system.slice/docker-" + id + ".scope", batch},
		{"/docker", none},
		{"/docker/" + id, batch},
		{"/docker/" + id + "/docker/" + id, none},
		{"/lxc.payload.web", batch},
		{"/lxc.payload.web/init.scope", none},
		{"/lxc.monitor.web", none},
		// Services.
		{"/system.slice", none},
		{"/system.slice/nginx.service", never},
		{"/system.slice/nginx.service/worker", none},
		{"/system.slice/system-postgresql.slice", none},
		{"/system.slice/system-postgresql.slice/postgresql@16-main.service", never},
		{"/system.slice/run-u7.scope", never},
		{"/runtime.slice", none},
		{"/runtime.slice/kubelet.service", never},
		{"/runtime.slice/containerd.service", never},
		{"/init.scope", none},
		// What people run, and slices of an operator.
		{"/user.slice/user-1000.slice", none},
		{"/user.slice/user-1000.slice/session-1.scope", never},
		{"/user.slice/user-1000.slice/session-1.scope/inner", none},
		{"/user.slice/user-1000.slice/user@1000.service", none},
		{"/user.slice/user-1000.slice/user@1000.service/init.scope", none},
		{"/user.slice/user-1000.slice/user@1000.service/app.slice/tracker.service", never},
		{"/user.slice/user-1000.slice/user@1000.service/app.slice/run-r7.scope", never},
		{"/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice", none},
		{"/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/gnome-terminal-server.service", never},
		{"/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte-spawn-5e9b1f5c.scope", never},
		{"/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte-spawn-5e9b1f5c.scope/inner", none},
		{"/batch.slice", none},
		{"/batch.slice/encode.service", batch},
		{"/batch.slice/run-r7.scope", batch},
		{"/batch.slice/batch-night.slice", none},
		{"/batch.slice/batch-night.slice/encode.service", batch},
		{"/batch.slice/batch-night.slice/batch-night-low.slice/run-r7.scope", batch},
		{"/machine.slice/machine-libpod_pod_" + id + ".slice", none},
		{"/machine.slice/machine-libpod_pod_" + id + ".slice/libpod-" + id + ".scope", batch},
		{"/machine.slice/machine-libpod_pod_" + id + ".slice/libpod-" + id + ".scope/a.scope", none},
		{"/user.slice/user-1000.slice/user-runtime-dir@1000.service", none},
		{"/system.slice/system-a.slice/run-u7.scope", none},
		{"/system.slice/system-a.slice/system-a-b.slice/x.service", none},
		{"/", none},
		{"", none},
	} {
		a := load(t, "", nil, nil)
		v := a.Classify(c.path, nil)
		r, job := v.Rule, v.Job
		got := none
		if r != nil {
			got = map[sample.Class]int{sample.BestEffort: best, sample.Batch: batch, sample.LatencySensitive: 99}[r.Class]
			if r.NeverCap && got == batch {
				got = never
			}
			if last := c.path[strings.LastIndexByte(c.path, '/')+1:]; string(job) != last {
				t.Errorf("%s: job %q", c.path, job)
			}
			if r.Protected {
				t.Errorf("%s: protected by default", c.path)
			}
		}
		if got != c.want {
			t.Errorf("%s: got %d, want %d (rule %+v)", c.path, got, c.want, r)
		}
	}
}

// TestRulesBelowTheDefaults: what the default rules make no task, rules that are appended to them can.
func TestRulesBelowTheDefaults(t *testing.T) {
	a := load(t, "rules:\n"+DefaultRules()+`
- {match: /user.slice/user-*.slice, class: batch}
- {match: /system.slice/slurmstepd.scope/job_*, class: batch}
`, nil, nil)
	for _, path := range []string{"/user.slice/user-1000.slice", "/system.slice/slurmstepd.scope/job_7"} {
		if a.Classify(path, nil).Rule == nil {
			t.Errorf("%s is no task", path)
		}
	}
}

func TestClassify(t *testing.T) {
	a := load(t, `
rules:
  - {match: /shop/test-*, ignore: true}
  - {match: /shop/*-*, class: latency-sensitive, job: "$1", protected: true}
  - {match: "/vm/**/*", class: batch, job: "$2.$1$2"}
  - {match: "/odd/(a|b)[c].d", class: batch}
  - {match: "/raw/*", class: batch, job: "raw-$1"}
  - {match: "/late", class: batch}
  - {match: "/late", class: best-effort}
`, nil, nil)
	for _, c := range []struct {
		path string
		rule int // -1: none
		job  sample.JobName
	}{
		{"/shop/web-1", 1, "web"},
		{"/shop/web-front-12", 1, "web-front"}, // the star matches as much as possible
		{"/shop/web-", 1, "web"},
		{"/shop/web", -1, ""},
		{"/shop/web-1/deeper", -1, ""},
		{"/shop/test-1", -1, ""}, // the first rule that matches applies, also to ignore
		{"/vm/a/b/c", 2, "c.a/bc"},
		{"/vm//c", 2, "c.c"},
		{"/vm/c", -1, ""},
		{"/odd/(a|b)[c].d", 3, "(a|b)[c].d"}, // only stars are special
		{"/odd/acxd", -1, ""},
		{"/late", 5, "late"},
		{"/later", -1, ""},
		{"/x/late", -1, ""},
		{"/raw/a\xffb", 4, "raw-a\uFFFDb"}, // names are bytes, jobs are text
		{"/raw/ü", 4, "raw-ü"},
	} {
		v := a.Classify(c.path, nil)
		r, job := v.Rule, v.Job
		switch {
		case c.rule < 0:
			if r != nil {
				t.Errorf("%q: matched by %q", c.path, r.Match)
			}
		case r != &a.Rules[c.rule] || job != c.job:
			t.Errorf("%q: rule %+v, job %q; want rule %d, job %q", c.path, r, job, c.rule, c.job)
		}
	}
	if r := a.Rules[1]; r.Class != sample.LatencySensitive || !r.Protected {
		t.Errorf("the rule is %+v", r)
	}
}

// FuzzPattern compares the patterns with a naive matcher.
func FuzzPattern(f *testing.F) {
	f.Add("/kubepods/*/pod*/**", "/kubepods/burstable/podx/y/z")
	f.Add("/a***b", "/ab")
	f.Add("/**/**", "//")
	f.Add("/[a]+(", "/[a]+(")
	f.Add("/é*", "/é\xff")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		if len(pattern) > 60 || len(path) > 60 || strings.ContainsRune(path, '\n') {
			return // the kernel refuses a newline in a cgroup's name
		}
		r := Matcher{Match: pattern}
		if err := r.compile(); err != nil {
			if strings.HasPrefix(pattern, "/") && strings.ToValidUTF8(pattern, "") == pattern {
				t.Errorf("%q: %v", pattern, err)
			}
			return
		}
		if got, want := r.pattern.MatchString(path), match(pattern, path); got != want {
			t.Errorf("pattern %q, path %q: %v, the naive matcher says %v", pattern, path, got, want)
		}
	})
}

// match is the naive matcher. What it knows already of the rests of both it does not find out again: of ten times **
// there are millions of ways.
func match(pattern, path string) bool {
	known := map[[2]int]bool{}
	var matches func(pattern, path string) bool
	matches = func(pattern, path string) bool {
		at := [2]int{len(pattern), len(path)}
		if is, ok := known[at]; ok {
			return is
		}
		is := false
		switch rest, all := strings.CutPrefix(pattern, "**"); {
		case pattern == "":
			is = path == ""
		case all || pattern[0] == '*':
			if !all {
				rest = pattern[1:]
			}
			for i := 0; i <= len(path) && !is; i++ {
				is = matches(rest, path[i:])
				if !all && i < len(path) && path[i] == '/' {
					break
				}
			}
		case path != "" && path[0] == pattern[0]:
			is = matches(pattern[1:], path[1:])
		}
		known[at] = is
		return is
	}
	return matches(pattern, path)
}
