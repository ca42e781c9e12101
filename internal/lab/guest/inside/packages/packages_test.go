//go:build inguest

package packages

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "web" {
		web()
	}
	if len(os.Args) > 1 && os.Args[1] == "hog" {
		for range 6 {
			go func() {
				for {
				}
			}()
		}
		select {}
	}
	if len(os.Args) > 1 && os.Args[1] == "backup" {
		compute(5*time.Millisecond, 95*time.Millisecond)
	}
	os.Exit(m.Run())
}

// web listens, and computes for a quarter of the time.
func web() {
	l, err := net.Listen("tcp4", "127.0.0.1:8080")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	go http.Serve(l, http.NotFoundHandler())
	compute(5*time.Millisecond, 15*time.Millisecond)
}

// compute computes and pauses, without end.
func compute(work, pause time.Duration) {
	for {
		for end := time.Now().Add(work); time.Now().Before(end); {
		}
		<-time.After(pause)
	}
}

// do runs a program to its end and returns what it printed.
func do(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LANG=C.UTF-8", "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	out, err := cmd.CombinedOutput()
	if err != nil {
		log, _ := exec.Command("journalctl", "--no-pager", "-n", "30", "-u", "quell*").CombinedOutput()
		t.Fatalf("%s %q: %v\n%s\n%s", name, args, err, out, log)
	}
	return string(out)
}

func until(t *testing.T, deadline time.Duration, what string, cond func() bool) {
	t.Helper()
	begin := time.Now()
	for !cond() {
		if time.Since(begin) > deadline {
			log, _ := exec.Command("journalctl", "--no-pager", "-n", "40", "-u", "quell*").CombinedOutput()
			top, _ := exec.Command("quell", "top", "--once").CombinedOutput()
			t.Fatalf("waited %v in vain until %s\n%s\n%s", deadline, what, top, log)
		}
		<-time.After(3 * time.Second) // each question takes CPU time, of which the guest has little
	}
	t.Logf("after %.1f s: %s", time.Since(begin).Seconds(), what)
}

// files are the files and directories that packages may leave.
func files(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, top := range []string{"/etc", "/usr", "/var", "/opt", "/run/quell"} {
		err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
			switch {
			case os.IsNotExist(err):
				return nil
			case err != nil:
				return err
			// Of dpkg, apt, systemd and the system's log.
			case slices.Contains([]string{"/var/lib/dpkg", "/var/lib/apt", "/var/cache", "/var/log", "/var/lib/systemd", "/var/tmp"}, name):
				return fs.SkipDir
			}
			all[name] = true
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func view(t *testing.T, task string) (v api.TaskView, ok bool) {
	out, err := exec.Command("quell", "top", "--once", "--json").Output()
	if err != nil {
		return v, false
	}
	var all []api.TaskView
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(v api.TaskView) bool { return string(v.Name) == task })
	if i < 0 {
		return v, false
	}
	return all[i], true
}

func ready(t *testing.T, task string, sig sample.SignalName) bool {
	v, _ := view(t, task)
	return slices.ContainsFunc(v.Costs, func(c api.SignalView) bool { return c.Signal == sig && c.Spec.State == spec.Ready })
}

// The cgroups of services: of the default slice, and of an operator's.
const (
	services = "/sys/fs/cgroup/system.slice/"
	batch    = "/sys/fs/cgroup/batch.slice/"
)

// limited reports whether a service has a CPU limit; without the controller it has none.
func limited(t *testing.T, service string) bool {
	t.Helper()
	text, err := os.ReadFile(service + "/cpu.max")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil && !strings.HasPrefix(string(text), "max ")
}

// controlled reports whether the cpu controller is enabled for a service.
func controlled(service string) bool {
	_, err := os.Stat(service + "/cpu.max")
	return err == nil
}

// capTask asks for a cap, and returns what quell answered.
func capTask(name string) (string, error) {
	out, err := exec.Command("quell", "cap", name, "--rate", "0.2", "--for", "1h", "--reason", "test").CombinedOutput()
	return string(out), err
}

// capped caps a service, as soon as the agent knows it.
func capped(t *testing.T, service string) {
	t.Helper()
	name := filepath.Base(service)
	var last string
	until(t, 2*time.Minute, name+" is capped", func() bool {
		out, err := capTask(name)
		if err != nil && out != last {
			t.Logf("%v: %s", err, out)
		}
		last = out
		return err == nil
	})
	if !limited(t, service) {
		t.Fatalf("%s is capped, and has no limit", name)
	}
}

// TestPackages is one course: install, use, upgrade, downgrade, remove, purge.
func TestPackages(t *testing.T) {
	if controlled(services + "web.service") {
		t.Fatal("services have the cpu controller before quell-agent runs: this is no default Debian")
	}
	before := files(t)
	begin := time.Now()
	t.Log(do(t, "apt-get", "install", "-y", "--no-install-recommends", "/debs/quell_1.deb", "/debs/quell-server_1.deb"))
	installed := time.Since(begin)
	for _, unit := range []string{"quell-agent", "quell-server"} {
		if out, _ := exec.Command("systemctl", "is-active", unit).Output(); strings.TrimSpace(string(out)) == "active" {
			t.Errorf("%s runs before it is configured", unit)
		}
	}
	do(t, "quell", "lab", "check", "/usr/share/doc/quell/studies/smoke.yaml") // the lab's first command
	t.Log(do(t, "quell", "init"))
	text, err := os.ReadFile("/etc/quell/agent.yaml")
	if err != nil || !strings.Contains(string(text), "web.service (job web.service)") {
		t.Errorf("%v:\n%s", err, text)
	}
	// Services of system.slice are never capped, except those that the operator allows.
	if err := os.WriteFile("/etc/quell/agent.yaml", []byte(strings.Replace(string(text), "\nrules:\n", "\nrules:\n  - {match: /system.slice/backup.service, class: batch}\n", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	// Else learning takes an hour and a half.
	if err := os.MkdirAll("/etc/systemd/system/quell-agent.service.d", 0o755); err != nil {
		t.Fatal(err)
	}
	faster := "/etc/systemd/system/quell-agent.service.d/faster.conf"
	if err := os.WriteFile(faster, []byte("[Service]\nEnvironment=QUELL_SAMPLING_DURATION=1s QUELL_SAMPLING_PERIOD=2s QUELL_SPEC_MIN_SAMPLES=15 QUELL_DETECT_OUTLIER_WINDOW=20s QUELL_DETECT_WINDOW=60s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	do(t, "systemctl", "daemon-reload")
	do(t, "systemctl", "enable", "--now", "quell-agent", "quell-server")
	if !controlled(services + "web.service") {
		t.Error("quell-agent runs, and web.service has no cpu.max")
	}
	until(t, 2*time.Minute, "web.service is named and classed, and its spec is learnt", func() bool {
		v, ok := view(t, "web.service")
		return ok && v.Job == "web.service" && v.Class == sample.LatencySensitive && v.Proposed && len(v.Costs) > 0
	})
	until(t, 2*time.Minute, "the dashboard answers on loopback", func() bool {
		r, err := http.Get("http://127.0.0.1:9781/")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK && strings.HasPrefix(r.Header.Get("Content-Type"), "text/html")
	})
	fmt.Printf("figure: packages: apt install took %.0f s, until tasks are named and classed, specs learning and the dashboard there %.0f s\n", installed.Seconds(), (time.Since(begin) - installed).Seconds())
	if out, _ := exec.Command("systemctl", "is-active", "quell-restore.timer").Output(); strings.TrimSpace(string(out)) != "active" {
		t.Errorf("quell-restore.timer is %s", out)
	}

	until(t, 3*time.Minute, "there is a spec", func() bool { return ready(t, "web.service", sample.RunQ) })
	// Otherwise systemd gives all services together as much as the one of batch.slice, which is enough.
	do(t, "systemctl", "set-property", "--runtime", "batch.slice", "CPUWeight=400")
	do(t, "systemd-run", "--slice=batch.slice", "--unit=hog", "/tests/0-packages.test", "hog")
	until(t, 3*time.Minute, "hog.service is named as the antagonist of web.service", func() bool {
		out, err := exec.Command("quell", "incidents", "--json").Output()
		var all []incident.Record
		if err != nil || json.Unmarshal(out, &all) != nil {
			return false
		}
		return slices.ContainsFunc(all, func(inc incident.Record) bool {
			return inc.Victim.Name == "web.service" && inc.Antagonists > 0 && inc.Suspects[0].Name == "hog.service"
		})
	})
	t.Log(do(t, "quell", "incidents"))

	// An operator's change of a configuration file is kept.
	f, err := os.OpenFile("/etc/quell/server.yaml", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("log_level: debug\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	otherSlice(t)
	do(t, "systemd-run", "--unit=backup", "/tests/0-packages.test", "backup")
	const backup = services + "backup.service"
	reloads(t, backup)

	for _, version := range []string{"2", "1"} {
		capped(t, backup)
		args := []string{"install", "-y", "--no-install-recommends", "--allow-downgrades", "/debs/quell_" + version + ".deb", "/debs/quell-server_" + version + ".deb"}
		do(t, "apt-get", args...)
		if limited(t, backup) {
			t.Errorf("after the installation of version %s backup.service is limited", version)
		}
		until(t, 2*time.Minute, "the new agent has the spec of the one before", func() bool { return ready(t, "web.service", sample.RunQ) })
		if text, err := os.ReadFile("/etc/quell/server.yaml"); err != nil || !strings.HasSuffix(string(text), "log_level: debug\n") {
			t.Errorf("the configuration is %q, %v", text, err)
		}
		for _, unit := range []string{"quell-agent", "quell-server", "quell-restore.timer"} {
			if out, _ := exec.Command("systemctl", "is-active", unit).Output(); strings.TrimSpace(string(out)) != "active" {
				t.Errorf("after the installation of version %s %s is %s", version, unit, out)
			}
		}
	}

	capped(t, backup)
	do(t, "apt-get", "remove", "-y", "quell", "quell-server")
	if limited(t, backup) {
		t.Error("after removal backup.service is limited")
	}
	for _, name := range []string{"/etc/quell/agent.yaml", "/etc/quell/server.yaml", "/var/lib/quell", "/var/lib/quell-server"} {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("removal without purge: %v", err)
		}
	}
	if out, _ := exec.Command("systemctl", "list-units", "--all", "--no-legend", "--plain", "quell*").Output(); len(out) > 0 {
		t.Errorf("units after removal:\n%s", out)
	}
	do(t, "apt-get", "purge", "-y", "quell", "quell-server")
	do(t, "rm", "-r", filepath.Dir(faster)) // the operator's own
	var left []string
	for name := range files(t) {
		if !before[name] {
			left = append(left, name)
		}
	}
	slices.Sort(left)
	// What useradd itself leaves.
	left = slices.DeleteFunc(left, func(name string) bool { return strings.HasPrefix(name, "/etc/") && strings.HasSuffix(name, "-") })
	if len(left) > 0 {
		t.Errorf("purge left:\n%s", strings.Join(left, "\n"))
	}
	if out, err := exec.Command("getent", "passwd", "quell-server").Output(); err == nil {
		t.Errorf("purge left the user: %s", out)
	}
}

// otherSlice: in an operator's slice no unit asks for the cpu controller. A cap there is refused
// with the command that enables it, which works.
func otherSlice(t *testing.T) {
	const hog = batch + "hog.service"
	// The guest's one CPU is for what follows.
	do(t, "systemctl", "set-property", "--runtime", "batch.slice", "CPUWeight=1")
	const remedy = "systemctl set-property hog.service CPUWeight=100"
	if out, err := capTask("hog.service"); err == nil || !strings.Contains(out, "cgroup.subtree_control of /batch.slice lacks it") || !strings.Contains(out, remedy) {
		t.Errorf("cap of a service without the controller: %v, %s", err, out)
	}
	if out := strings.Join(strings.Fields(do(t, "quell", "doctor")), " "); !strings.Contains(out, "not enabled in /batch.slice") || !strings.Contains(out, remedy) {
		t.Errorf("quell doctor does not say that caps in batch.slice fail:\n%s", out)
	}
	do(t, "sh", "-c", remedy)
	capped(t, hog)
	do(t, "systemctl", "stop", "hog.service")
	do(t, "rm", "-rf", "/etc/systemd/system.control") // what set-property has written
	do(t, "systemctl", "daemon-reload")
}

// reloads: what systemd does to the slice of a capped service. Whether a cap outlives it is
// systemd's decision, but the agent knows what has become of the cap, and can cap again.
func reloads(t *testing.T, service string) {
	after := func(event string, controller bool) {
		t.Helper()
		until(t, time.Minute, "the agent knows of the cap as it is: "+event, func() bool {
			var st api.Status
			text, err := exec.Command("quell", "status", "--json").Output()
			if err := json.Unmarshal(text, &st); err != nil {
				t.Fatal(err)
			}
			if err != nil {
				t.Logf("quell status: %v", err) // something is degraded
			}
			return (len(st.Caps) > 0) == limited(t, service)
		})
		if got := controlled(service); got != controller {
			t.Errorf("%s: has the controller: %v, want %v", event, got, controller)
		}
		t.Logf("%s: limited: %v", event, limited(t, service))
		if controller && !limited(t, service) {
			capped(t, service)
		}
	}
	capped(t, service)
	do(t, "systemd-run", "--unit=other", "sleep", "1d")
	after("another service of the slice starts", true)
	do(t, "systemctl", "stop", "other")
	after("another service of the slice stops", true)
	do(t, "systemctl", "daemon-reload")
	after("daemon-reload", true)
	const dropIn = "/run/systemd/system/quell-agent.service.d/weight.conf"
	if err := os.MkdirAll(filepath.Dir(dropIn), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dropIn, []byte("[Service]\nCPUWeight=\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	do(t, "systemctl", "daemon-reload")
	after("no unit asks for the controller", false)
	if out, err := capTask("backup.service"); err == nil || !strings.Contains(out, "systemctl set-property backup.service CPUWeight=100") {
		t.Errorf("a cap without the controller: %v, %s", err, out)
	}
	if err := os.RemoveAll(filepath.Dir(dropIn)); err != nil {
		t.Fatal(err)
	}
	do(t, "systemctl", "daemon-reload")
	after("the agent's unit asks for it again", true)
	do(t, "quell", "uncap", "backup.service", "--reason", "test")
	if limited(t, service) {
		t.Error("uncapped, and limited")
	}
}
