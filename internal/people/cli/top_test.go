package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/top"
	"github.com/quell-dev/quell/internal/testkit/clitest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// watch runs the live view until it has written sign n times, and then ends it as Ctrl-C
// does.
func watch(t *testing.T, tty bool, sign string, n int, args ...string) (code int, out string) {
	t.Helper()
	return watching(t, clitest.Env(newFake(t).socket), tty, sign, n, args...)
}

func watching(t *testing.T, env map[string]string, tty bool, sign string, n int, args ...string) (code int, out string) {
	t.Helper()
	var b quelltest.Output
	a := &app.App{Out: &b, Err: io.Discard, Zone: time.UTC, Now: time.Now,
		Getenv:   func(name string) string { return env[name] },
		Terminal: func() (int, int, bool) { return 80, 7, tty }}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan int)
	go func() { done <- a.Run(ctx, newRoot(a), append([]string{"top"}, args...)) }()
	quelltest.Until(t, "the view was drawn", func() bool { return strings.Count(b.String(), sign) >= n })
	cancel()
	return <-done, b.String()
}

func TestTopRedrawsAndLeavesTheTerminalAsItWas(t *testing.T) {
	t.Parallel()
	code, out := watch(t, true, home, 2)
	if code != app.ExitOK {
		t.Errorf("exit code %d", code)
	}
	if !strings.HasPrefix(out, enter) || !strings.HasSuffix(out, leave) || strings.Count(out, enter) != 1 {
		t.Errorf("the alternate screen is not entered once and left: %q", out)
	}
	frame, _, _ := strings.Cut(strings.TrimPrefix(out, enter+home), pageEnd)
	if rows := strings.Count(frame, "\n"); rows > 6 {
		t.Errorf("a frame of %d rows scrolls a terminal of 7:\n%s", rows, frame)
	}
	if !strings.Contains(frame, "node-3") || !strings.Contains(frame, "redis") || !strings.Contains(frame, "and 2 more") {
		t.Errorf("frame is\n%s", frame)
	}
}

func TestTopIntoAPipe(t *testing.T) {
	t.Parallel()
	code, out := watch(t, false, "TASK", 2)
	if code != app.ExitOK || strings.Contains(out, "\x1b") {
		t.Errorf("exit code %d:\n%q", code, out)
	}
}

func TestTopAsJSONIsOneLineATime(t *testing.T) {
	t.Parallel()
	code, out := watch(t, true, "\n", 2, "--json")
	if code != app.ExitOK {
		t.Errorf("exit code %d", code)
	}
	for line := range strings.Lines(out) {
		var tasks []api.TaskView
		if err := json.Unmarshal([]byte(line), &tasks); err != nil || len(tasks) != 4 {
			t.Errorf("%d tasks, %v in %q", len(tasks), err, line)
		}
	}
}

func TestTopIsSortedAsAsked(t *testing.T) {
	f := newFake(t)
	first := func(args ...string) string {
		t.Helper()
		r := quell(t, clitest.Env(f.socket), append([]string{"top", "--once", "--json"}, args...)...)
		var tasks []api.TaskView
		if err := json.Unmarshal([]byte(r.Out), &tasks); err != nil || len(tasks) != 4 {
			t.Fatalf("%d tasks, %v, %s", len(tasks), err, r.Err)
		}
		return string(tasks[0].Job)
	}
	for key, want := range map[string]string{"worst": "redis", "cpu": "encode", "cpt": "x"} {
		if got := first("--sort", key); got != want {
			t.Errorf("by %s %s is first, want %s", key, got, want)
		}
	}
	if r := quell(t, clitest.Env(f.socket), "top", "--once", "--sort", "size"); r.Code != app.ExitUsage || !strings.Contains(r.Err, "worst, cpu, name") {
		t.Errorf("by size: exit code %d, %s", r.Code, r.Err)
	}
}

// A time of day is the last one before now.
func TestParseAt(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{"11:30": "2026-01-31T11:30:00Z", "12:30:15": "2026-01-30T12:30:15Z", "30m": "2026-01-31T11:30:00Z", "1d": "2026-01-30T12:00:00Z",
		"2026-01-02 03:04": "2026-01-02T03:04:00Z", "2026-01-02 03:04:05": "2026-01-02T03:04:05Z", "2026-01-02T03:04:05+01:00": "2026-01-02T02:04:05Z"} {
		if got, err := parseAt(text, now, time.UTC); err != nil || got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%s is %v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "yesterday", "25:00", "-5m"} {
		if got, err := parseAt(text, now, time.UTC); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// noted is an agent whose tasks have long notes.
type noted struct{ top.Agent }

func (noted) Status(context.Context) (api.Status, error) { return api.Status{Machine: "node-3"}, nil }

func (noted) Tasks(context.Context) (all []api.TaskView, err error) {
	for i := range 8 {
		all = append(all, api.TaskView{Task: sample.Task{Name: sample.TaskName(fmt.Sprintf("/task-%d", i))}, Note: strings.Repeat("what is not known of it, ", 30)})
	}
	return all, nil
}

// Notes that take several lines do not scroll the heading out of a terminal.
func TestNotesDoNotScroll(t *testing.T) {
	const height = 12
	a := &commands{App: &app.App{Out: io.Discard, Zone: time.UTC, Now: time.Now, Getenv: func(string) string { return "" }, Terminal: func() (int, int, bool) { return 120, height, true }}}
	frame, err := a.frame(t.Context(), noted{}, "worst", true)
	if err != nil {
		t.Fatal(err)
	}
	if rows := strings.Count(frame, "\n"); rows >= height || !strings.Contains(frame, "what is not known") || !strings.HasSuffix(frame, "\n"+line+pageEnd) {
		t.Errorf("a frame of %d rows for a terminal of %d:\n%q", rows, height, frame)
	}
}

// A terminal that does not know its size, such as a serial line, shows all tasks.
func TestTopWithoutASize(t *testing.T) {
	a := &commands{App: &app.App{Out: io.Discard, Zone: time.UTC, Now: time.Now, Getenv: func(string) string { return "" }, Terminal: func() (int, int, bool) { return 0, 0, true }}}
	frame, err := a.frame(t.Context(), noted{}, "worst", true)
	if err != nil || !strings.Contains(frame, "/task-0") || !strings.Contains(frame, "/task-7") {
		t.Errorf("%v: %q", err, frame)
	}
}
