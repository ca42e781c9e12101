package env

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/load"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// signalQEMU is a program that sends a signal to the fake QEMU in which it runs.
func signalQEMU(word string) error {
	n, err := strconv.Atoi(word)
	if err != nil {
		return err
	}
	for pid := os.Getppid(); pid > 1; {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			return err
		}
		if strings.Contains(string(text), "\x00play-qemu\x00") {
			if err := unix.Kill(pid, unix.Signal(n)); err != nil {
				return err
			}
			return unix.Pause() // select {} would be a deadlock, which ends it by itself
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(string(status), "\nPPid:")
		if _, err := fmt.Sscan(rest, &pid); err != nil {
			return err
		}
	}
	return fmt.Errorf("no fake QEMU above process %d", os.Getpid())
}

// impatient gives the guests of a role less time to let the lab in than the others, which a busy
// machine may slow down.
type impatient struct {
	*Maker
	role  string
	limit time.Duration
}

func (m impatient) Make(ctx context.Context, p *study.Part) (lab.Environment, error) {
	if p.Role == m.role {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.limit)
		defer cancel()
	}
	return m.Maker.Make(ctx, p)
}

type silent struct{}

func (silent) Plan(int, time.Duration)                    {}
func (silent) Run(int, *study.Planned, int)               {}
func (silent) Phase(string, time.Duration, time.Duration) {}
func (silent) Done(*result.Run)                           {}

// Whatever happens to a co-runner's guest, the run gets a verdict that says what it was and,
// where the user can do something, what. Nothing is left of both guests.
func TestVerdictsOfDiskGuests(t *testing.T) {
	works := []string{os.Args[0], "play-work", "waits"}
	for _, c := range []struct {
		name, disk string // of the co-runner's image
		argv       []string
		waits      bool
		verdict    result.Verdict
		reason     result.Reason
		text       string
	}{
		{"all is well", "good", works, true, result.Valid, "", ""},
		{"its image is missing", "", works, true, result.Skipped, "lacking", "quell lab image build"},
		{"its image has no cloud-init", "without-cloud-init", works, true, result.Skipped, "lacking", "install cloud-init"},
		{"it hangs at boot", "hangs", works, true, result.Failed, result.WorkloadFailed, "hangs at boot"},
		{"its kernel panics", "panics", works, true, result.Failed, result.WorkloadFailed, "Unable to mount root"},
		{"its program is missing", "good", []string{"/bench/nosuch"}, false, result.Invalid, result.CorunnerDied, "/bench/nosuch"},
		{"its program fails", "good", []string{"sh", "-c", "exit 3"}, false, result.Invalid, result.CorunnerDied, "exit status 3"},
		{"its QEMU is killed", "good", []string{os.Args[0], "play-signal", "9"}, false, result.Invalid, result.HostLost, "SSH ended"},
		{"its SSH is lost", "good", []string{os.Args[0], "play-signal", "12"}, false, result.Invalid, result.HostLost, "SSH ended"},
		{"the host's disk is full", "good", []string{os.Args[0], "play-signal", "10"}, false, result.Invalid, result.HostLost, "disk is full"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, p := fakeGuest(t, "good")
			m.patience = patience{login: 4 * time.Minute}
			var maker lab.Maker = m
			if c.disk == "hangs" {
				maker = impatient{m, "bg", 20 * time.Second}
			}
			disk := filepath.Join(filepath.Dir(p.Environment.Image), "nosuch.img")
			if c.disk != "" {
				disk = fakeDisk(t, filepath.Dir(p.Environment.Image), c.disk)
			}
			length := "300ms"
			if c.verdict == result.Invalid {
				length = "30s" // it ends with what the co-runner does
			}
			text := fmt.Sprintf(`
version: 1
study: t
environments:
  good: {driver: qemu, cpus: 1, memory: 256MiB, accel: [tcg], image: %q}
  other: {driver: qemu, cpus: 1, memory: 256MiB, accel: [tcg], image: %q}
workloads: {work: {builtin: burn}, other: {builtin: idle}}
roles:
  fg: {workload: work, environment: good, measure: true}
  bg: {workload: other, environment: other}
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1}
run: {retries: 0, for: %s, min_overlap: 0%%, cooldown: 0s, timeout: 4m}
`, p.Environment.Image, disk, length)
			// A builtin idle may stand still: until something happens to its guest, the program
			// that is played for it does.
			s, err := study.Parse("t.yaml", []byte(text), study.Known{Builtins: []string{"burn", "idle"}})
			if err != nil {
				t.Fatal(err)
			}
			f, err := result.Create(filepath.Join(t.TempDir(), "r"), result.Lock{Study: "t", Hash: text})
			if err != nil {
				t.Fatal(err)
			}
			allowed, err := host.Affinity(0)
			if err != nil {
				t.Fatal(err)
			}
			h, err := host.Open("/")
			if err != nil {
				t.Fatal(err)
			}
			top, err := h.Topology()
			if err != nil {
				t.Fatal(err)
			}
			o := lab.Options{Study: s, Folder: f, Maker: maker, Progress: silent{}, Topology: top, Allowed: allowed,
				Hold: func(context.Context, lab.Environment, float64, *study.Part, []load.Level, func(load.Period)) error {
					return nil
				},
				Command: func(_ *study.Cell, p *study.Part) (lab.Job, error) {
					if p.Role == "fg" {
						return lab.Job{Argv: works, WaitsForStart: true}, nil
					}
					return lab.Job{Argv: c.argv, WaitsForStart: c.waits}, nil
				}}
			if _, err := lab.Run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			runs, err := f.Runs()
			if err != nil || len(runs) != 1 {
				t.Fatal(runs, err)
			}
			r := runs[0]
			if r.Verdict != c.verdict {
				t.Errorf("%s: %+v, want %s", r.Verdict, r.Evidence, c.verdict)
			}
			if i := slices.IndexFunc(r.Evidence, func(e result.Evidence) bool { return e.Reason == c.reason }); c.reason != "" && (i < 0 || !strings.Contains(r.Evidence[i].Text, c.text)) {
				t.Errorf("evidence %+v, want %s: %s", r.Evidence, c.reason, c.text)
			}
			if tree := m.trees[false]; tree != nil {
				if left := tree.Leftovers(); slices.ContainsFunc(left, func(s string) bool {
					return strings.Contains(filepath.Base(s), "e1.") || strings.Contains(filepath.Base(s), "e2.")
				}) {
					t.Errorf("left %v", left)
				}
			}
		})
	}
}
