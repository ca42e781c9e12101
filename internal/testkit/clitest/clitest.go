// Package clitest runs command lines of quell in tests, and compares their output with
// golden files.
package clitest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/people/cli/app"
)

// Answer is the result of a command line.
type Answer struct {
	Code     int
	Out, Err string
}

// Run runs a command line of a root command, without a terminal, at 12:30 UTC of the day
// of the tests' data.
func Run(t testing.TB, root func(*app.App) *cobra.Command, env map[string]string, args ...string) Answer {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app.App{Out: &out, Err: &errs, Zone: time.UTC, Version: "devel",
		Getenv:   func(name string) string { return env[name] },
		Terminal: func() (int, int, bool) { return 0, 0, false },
		Now:      func() time.Time { return time.Date(2025, 11, 21, 12, 30, 0, 0, time.UTC) }}
	code := a.Run(t.Context(), root(a), args)
	return Answer{code, out.String(), errs.String()}
}

// Env is the usual environment, with the agent's socket.
func Env(socket string) map[string]string {
	return map[string]string{"LANG": "C.UTF-8", "QUELL_SOCKET": socket}
}

// Golden compares text with testdata/NAME.txt, or writes that file.
func Golden(t testing.TB, update bool, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s differs (-update accepts):\n%s", file, text)
	}
}
