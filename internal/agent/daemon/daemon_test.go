package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

type helped struct{ error }

func (helped) Remedy() string { return "try again" }

type hung struct{ error }

func (hung) Code() int { return 3 }

// A program's exit code and message depend on its error, however deeply it is wrapped.
func TestMainEnds(t *testing.T) {
	base := errors.New("open door: it is locked")
	for _, c := range []struct {
		args []string
		err  error
		code int
		says string
	}{
		{nil, nil, 0, ""},
		{nil, base, Failed, "quell-x: open door: it is locked\n"},
		{nil, fmt.Errorf("start: %w", Usage(base)), ExitUsage, "quell-x: start: open door: it is locked\n"},
		{nil, errors.Join(Usage(helped{base})), ExitUsage, "quell-x: open door: it is locked\nwhat to do: try again\n"},
		{nil, fmt.Errorf("restore: %w", hung{base}), 3, "quell-x: restore: open door: it is locked\n"},
		{[]string{"--nothing"}, nil, ExitUsage, "quell-x: unknown flag: --nothing\n"},
		{[]string{"surplus"}, nil, ExitUsage, "quell-x: unknown command"},
	} {
		root := &cobra.Command{Use: "quell-x", Args: NoArgs, RunE: func(*cobra.Command, []string) error { return c.err }}
		root.SetArgs(append([]string{}, c.args...))
		var out bytes.Buffer
		if code := Main(t.Context(), root, &out); code != c.code || !strings.HasPrefix(out.String(), c.says) || (c.says == "") != (out.Len() == 0) {
			t.Errorf("%v, %v: %d %q; want %d %q", c.args, c.err, code, out.String(), c.code, c.says)
		}
	}
}

// A configuration comes from file and settings, and its problems are usage errors.
func TestConfigured(t *testing.T) {
	type conf struct{ file, setting string }
	for _, x := range []struct {
		args string
		code int
		says string
		want conf
	}{
		{"", 0, "", conf{}},
		{"--config f.yaml --set a=1 --set b=2", 0, "", conf{"f.yaml", "a=1 b=2"}},
		{"--set bad=1", ExitUsage, "bad: no such key", conf{}},
		{"check --set bad=1", ExitUsage, "bad: no such key", conf{}},
		{"check", 0, "the configuration is valid", conf{}},
		{"check surplus", ExitUsage, "quell-x: unknown command", conf{}},
		{"config", 0, "key: 1\n", conf{}},
	} {
		var got conf
		var c *Config[conf]
		root := &cobra.Command{Use: "quell-x", Args: NoArgs, RunE: func(*cobra.Command, []string) error {
			v, err := c.Load()
			if err == nil {
				got = *v
			}
			return err
		}}
		c = AddConfig(root, func(file string, environ, settings []string) (*conf, error) {
			if slices.Contains(settings, "bad=1") {
				return nil, errors.New("bad: no such key")
			}
			return &conf{file, strings.Join(settings, " ")}, nil
		}, func() string { return "key: 1\n" }, "x.yaml", "key=2")
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(strings.Fields(x.args))
		code := Main(t.Context(), root, &out)
		if got := strings.Join(c.Under("u=0").Args(), " "); code == 0 && x.want.file != "" && got != "--config f.yaml --set u=0 --set a=1 --set b=2" {
			t.Errorf("another process is given %s", got)
		}
		if code != x.code || !strings.Contains(out.String(), x.says) || got != x.want {
			t.Errorf("%s: %d %q, %+v; want %d %q, %+v", x.args, code, out.String(), got, x.code, x.says, x.want)
		}
	}
}

// SIGTERM ends a program that runs until it is stopped.
func TestUntilStopped(t *testing.T) {
	ctx, stop := UntilStopped(context.Background())
	defer stop()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
}
