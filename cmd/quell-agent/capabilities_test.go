package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The users that the agent and the tasks run as: two different users, neither of them root.
const (
	agentUID = 64101
	taskUID  = 64102
)

// TestPrivileges runs the agent with exactly the capabilities of each row of
// docs/privileges.md and checks that it does what the row says, no less and no more:
// missing features are reported, and the rest works.
func TestPrivileges(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1, quelltest.Cgroup2, quelltest.EBPF, quelltest.PerfSoftware, quelltest.Tracepoints, "setpriv")
	rows, features := privileges(t)
	if quelltest.Probe(quelltest.PMU) != nil { // cpi cannot be counted here
		isCPI := func(f string) bool { return f == "cpi" }
		features = slices.DeleteFunc(features, isCPI)
		for i := range rows {
			rows[i].works = slices.DeleteFunc(rows[i].works, isCPI)
		}
	}
	m := newPrivilegedMachine(t)
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			got := m.run(t, row)
			for _, f := range features {
				if want := slices.Contains(row.works, f); got.works[f] != want {
					t.Errorf("%s: %v, want %v; the agent says:\n%s", f, got.works[f], want, got.said)
				} else if !want && !strings.Contains(got.said, reasonOf[f]) {
					t.Errorf("%s does not work and no message says %q:\n%s", f, reasonOf[f], got.said)
				}
			}
		})
	}
}

// reasonOf is part of the agent's message if a feature does not work.
var reasonOf = map[string]string{
	"cpi": "signal cpi: ", "cps": "signal cps: ", "runq (bpf)": "eBPF", "progress file": "cpt: ", "scrape": "cpt: ",
	"scrape in a network of its own": "cpt: ", "uprobe": "cpt: ", "cap": "permission denied",
}

type privilegeRow struct {
	n            int
	name         string
	capabilities []string
	works        []string
}

// privileges reads the table of docs/privileges.md.
func privileges(t *testing.T) (rows []privilegeRow, features []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/privileges.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case len(cells) < 5 || strings.HasPrefix(cells[0], "-"):
		case cells[0] == "capabilities":
			features = cells[1:]
		default:
			row := privilegeRow{n: len(rows), name: cells[0]}
			for word := range strings.FieldsSeq(strings.NewReplacer("`", "", "+", " ").Replace(cells[0])) {
				if word != "none" {
					row.capabilities = append(row.capabilities, strings.ToLower(word))
				}
			}
			for i, cell := range cells[1:] {
				if cell == "yes" {
					row.works = append(row.works, features[i])
				}
			}
			rows = append(rows, row)
		}
	}
	if len(rows) < 5 || len(features) != len(reasonOf) {
		t.Fatalf("%d rows, features %q", len(rows), features)
	}
	return rows, features
}

// privilegedMachine has tasks of each kind that a rule can configure, and their program, which
// the agent's user may read.
type privilegedMachine struct {
	dir, binary, rules string
	cgroups            map[string]string
}

func newPrivilegedMachine(t *testing.T) *privilegedMachine {
	t.Helper()
	dir := state(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m := &privilegedMachine{dir: dir, binary: filepath.Join(dir, "quell-agent"), cgroups: map[string]string{}}
	text, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.binary, text, 0o755); err != nil {
		t.Fatal(err)
	}
	// Owned by the task's user and readable only by it.
	private := filepath.Join(dir, "private")
	if err := errors.Join(os.Mkdir(private, 0o700), os.Chown(private, taskUID, taskUID)); err != nil {
		t.Fatal(err)
	}
	// The scraped task gets the listener, so that no other program takes its port meanwhile.
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	rules := "rules:\n"
	for _, kind := range []struct{ name, rule string }{
		{"progress file", ""},
		{"scrape", fmt.Sprintf("prometheus: {port: %d, metric: transactions_total}", port)},
		{"scrape in a network of its own", fmt.Sprintf("prometheus: {port: %d, metric: transactions_total}", port)},
		{"uprobe", fmt.Sprintf("uprobe: {binary: %q, symbol: %q, max_rate: 100000}", m.binary, "github.com/quell-dev/quell/cmd/quell-agent.transaction")},
	} {
		name := fmt.Sprintf("/quell-test-caps-%d-%s", os.Getpid(), strings.ReplaceAll(kind.name, " ", "-"))
		m.cgroups[kind.name] = name
		rules += fmt.Sprintf("  - {match: %q, class: batch, %s}\n", name, kind.rule)
		env := []string{testMode + "=task"}
		var listener *os.File
		attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: taskUID, Gid: taskUID}}
		switch kind.name {
		case "progress file":
			env = append(env, "QUELL_PROGRESS="+private+"/progress")
		case "scrape":
			if listener, err = l.(*net.TCPListener).File(); err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
		case "scrape in a network of its own":
			env = append(env, "QUELL_TEST_PORT="+strconv.Itoa(port))
			attr.Cloneflags, attr.AmbientCaps = unix.CLONE_NEWNET, []uintptr{unix.CAP_NET_ADMIN}
		}
		m.startTask(t, name, env, attr, listener)
	}
	m.rules = rules
	return m
}

// startTask runs a task in a cgroup of that name in both hierarchies. It answers at the listener, if
// that is not nil.
func (m *privilegedMachine) startTask(t *testing.T, name string, env []string, attr *syscall.SysProcAttr, listener *os.File) {
	t.Helper()
	dir := quelltest.MakeCgroup(t, cpuMount+name)
	cmd := exec.Command(m.binary)
	cmd.Env, cmd.SysProcAttr = env, attr
	if listener != nil {
		cmd.ExtraFiles, cmd.Env = []*os.File{listener}, append(env, "QUELL_TEST_LISTENER=3")
	}
	p := quelltest.StartChild(t, cmd, quelltest.MakeCgroup(t, quelltest.CgroupMount(t, "")+name))
	if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(p.PID)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// delegate makes a task whose quota files are owned by the agent's user.
func (m *privilegedMachine) delegate(t *testing.T, row privilegeRow) (name string) {
	t.Helper()
	name = fmt.Sprintf("/quell-test-caps-%d-own-%d", os.Getpid(), row.n)
	dir := quelltest.MakeCgroup(t, cpuMount+name)
	for _, file := range []string{"cpu.cfs_quota_us", "cpu.cfs_period_us"} {
		if err := os.Chown(filepath.Join(dir, file), agentUID, agentUID); err != nil {
			t.Fatal(err)
		}
	}
	quelltest.StartChild(t, exec.Command("cat"), dir)
	return name
}

// runTask is the task's main loop: a transaction each millisecond, counted in all three
// ways.
func runTask() {
	var done atomic.Uint64
	if l := taskListener(); l != nil {
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "transactions_total %d\n", done.Load())
		}))
	}
	progress, _ := os.OpenFile(os.Getenv("QUELL_PROGRESS"), os.O_CREATE|os.O_WRONLY, 0o600)
	go func() { io.Copy(io.Discard, os.Stdin); os.Exit(0) }()
	for range time.Tick(time.Millisecond) {
		transaction()
		n := done.Add(1)
		if progress != nil {
			progress.WriteAt(binary.LittleEndian.AppendUint64(nil, n), 0)
		}
	}
}

// taskListener is where the task answers, if it does: the port of its own network, or the listener
// that it was given.
func taskListener() (l net.Listener) {
	var err error
	switch port, inherited := os.Getenv("QUELL_TEST_PORT"), os.Getenv("QUELL_TEST_LISTENER"); {
	case port != "":
		upLoopback()
		l, err = net.Listen("tcp4", "127.0.0.1:"+port)
	case inherited != "":
		l, err = net.FileListener(os.NewFile(3, "listener"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return l
}

//go:noinline
func transaction() {}

func upLoopback() {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if lo, err := unix.NewIfreq("lo"); err == nil {
		lo.SetUint16(unix.IFF_UP)
		unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
	}
}

// outcome is what an agent could do, and all messages about the rest.
type outcome struct {
	works map[string]bool
	said  string
}

// run starts the agent as another user with exactly these capabilities.
func (m *privilegedMachine) run(t *testing.T, row privilegeRow) outcome {
	t.Helper()
	dir, err := os.MkdirTemp(m.dir, "run-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, agentUID, agentUID); err != nil {
		t.Fatal(err)
	}
	delegated := m.delegate(t, row)
	config := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "%s  - {match: %q, class: batch, signals: [runq]}\n", m.rules, delegated), 0o644); err != nil {
		t.Fatal(err)
	}
	caps := "-all"
	for _, c := range row.capabilities {
		caps += ",+" + c
	}
	d := &running{Client: api.NewClient(dir + "/agent.sock"), t: t, ended: make(chan struct{})}
	args := append(settings(dir, "signals=cpi,cpt,cps,runq", "sampling.max_tax=0", "sampling.duration=200ms", "sampling.period=250ms", "log_level=debug"), "--config", config)
	// In a separate mount namespace, where tracefs is mounted as on most machines; then
	// as another user.
	d.cmd = agentCommand(context.Background(), t)
	script := `mount -t tracefs tracefs /sys/kernel/tracing; caps=$1 user=$2; shift 2
exec setpriv --reuid "$user" --regid "$user" --clear-groups --bounding-set "$caps" --inh-caps "$caps" --ambient-caps "$caps" "$@"`
	d.cmd.Args = append([]string{"sh", "-c", script, "sh", caps, strconv.Itoa(agentUID), d.cmd.Path}, args...)
	d.cmd.Path = "/bin/sh"
	d.cmd.Dir = "/"
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	d.startLogged()
	go func() { d.cmd.Wait(); close(d.ended) }()
	defer func() {
		d.cmd.Process.Signal(syscall.SIGTERM)
		<-d.ended
		quota, err := os.ReadFile(cpuMount + delegated + "/cpu.cfs_quota_us")
		if strings.TrimSpace(string(quota)) != "-1" {
			t.Errorf("stopped, it left the quota %s, %v", quota, err)
		}
	}()
	o := outcome{works: map[string]bool{}}
	// Features that should work get time to do so, more than a task is left alone whose answer took
	// too long; the others get a few windows.
	quelltest.Until(t, "the agent has looked at its tasks", quelltest.Paced(func() bool {
		select {
		case <-d.ended:
			t.Fatalf("the agent ended:\n%s", d.log.String())
		default:
		}
		s, err := d.Status(t.Context())
		if err != nil || s.Tasks <= len(m.cgroups) { // theirs and the delegated one
			return false
		}
		o.look(t, m, d, s)
		missing := slices.ContainsFunc(row.works, func(f string) bool { return f != "cap" && !o.works[f] })
		return s.Intervals >= 3 && !missing || s.Intervals >= 600
	}))
	done, err := d.Command(t.Context(), command.CapTask(delegated, 0.5, time.Minute, "test"))
	o.works["cap"] = err == nil && done.ID != ""
	o.said += fmt.Sprintf("cap: %v\n", err)
	// A cgroup that was not delegated cannot be capped.
	if _, err := d.Command(t.Context(), command.CapTask(m.cgroups["uprobe"], 0.5, time.Minute, "test")); err == nil {
		t.Error("it capped a task that was not delegated to it")
	}
	return o
}

// look adds the features that work now.
func (o *outcome) look(t *testing.T, m *privilegedMachine, d *running, s api.Status) {
	t.Helper()
	o.said = strings.Join(s.Degraded, "\n") + "\n"
	for _, sig := range s.Signals {
		o.said += fmt.Sprintf("signal %s: %v %s %s\n", sig.Signal, sig.OK, sig.Variant, sig.Reason)
		switch sig.Signal {
		case sample.RunQ:
			o.works["runq (bpf)"] = sig.Variant == "bpf"
		case sample.CPI, sample.CPS:
			o.works[string(sig.Signal)] = sig.OK
		}
	}
	tasks, err := d.Tasks(t.Context())
	if err != nil {
		return
	}
	for _, task := range tasks {
		o.said += fmt.Sprintf("%s: %s\n", task.Name, task.Note)
		for kind, name := range m.cgroups {
			if string(task.Name) != name {
				continue
			}
			for _, c := range task.Costs {
				if c.Signal == sample.CPT && float64(c.Cost) > 0 {
					o.works[kind] = true
				}
			}
		}
	}
}
