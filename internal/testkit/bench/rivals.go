package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/child"
)

// The rivals and their versions. They are built into bin/rivals if they are not
// there; building below takes about ten minutes.
const (
	nodeExporterModule = "github.com/prometheus/node_exporter@v1.9.1"
	belowVersion       = "0.9.0"
)

// cadvisorSource is a main over cAdvisor's library, as a module of its own so
// that none of it gets into quell's.
//
//go:embed testdata/cadvisor
var cadvisorSource embed.FS

// rivals returns all rivals. One that could not be built is absent, with the
// reason. With build unset none is built, and only existing programs are used.
func rivals(ctx context.Context, bin string, build bool) []contender {
	ready := func(name string, make func(target string) error) (string, error) {
		target, err := filepath.Abs(filepath.Join(bin, name))
		if err != nil {
			return "", err
		}
		if _, err := os.Stat(target); err == nil {
			return target, nil
		}
		if !build {
			return target, errors.New("not built (-rivals=have)")
		}
		fmt.Fprintf(os.Stderr, "building %s\n", name)
		return target, make(target)
	}
	exporter, exporterErr := ready("node_exporter", func(target string) error {
		return goBuild(ctx, "", []string{"GOBIN=" + filepath.Dir(target)}, "install", nodeExporterModule)
	})
	cadvisor, cadvisorErr := ready("cadvisor", func(target string) error { return buildCadvisor(ctx, target) })
	below, belowErr := ready("below", func(target string) error { return buildBelow(ctx, target) })
	return []contender{
		{name: "node_exporter 1.9.1", absent: exporterErr, commands: func(r *run, n int) ([][]string, string, error) {
			at, err := child.FreeAddress()
			return [][]string{{exporter, "--web.listen-address=" + at}}, "http://" + at + "/metrics", err
		}},
		{name: "cAdvisor 0.60.6", heavy: true, unified: true, names: true, absent: cadvisorErr, commands: func(r *run, n int) ([][]string, string, error) {
			at, err := child.FreeAddress()
			return [][]string{{cadvisor, "-listen=" + at}}, "http://" + at + "/metrics", err
		}},
		{name: "below 0.9.0, every 5 s", heavy: true, unified: true, absent: belowErr, commands: func(r *run, n int) ([][]string, string, error) {
			dir := filepath.Join(r.scratch, "below")
			if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
				return nil, "", err
			}
			conf := filepath.Join(dir, "below.conf")
			text := fmt.Sprintf("log_dir = %q\nstore_dir = %q\n", dir, dir)
			return [][]string{{below, "--config", conf, "record", "--disable-exitstats"}}, "", os.WriteFile(conf, []byte(text), 0o600)
		}},
	}
}

func goBuild(ctx context.Context, dir string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), append(env, "GOWORK=off", "GOFLAGS=")...)
	return say(cmd)
}

// say runs a command; its error ends with the last line of the command's output.
func say(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, lines[len(lines)-1])
	}
	return nil
}

func buildCadvisor(ctx context.Context, target string) error {
	dir, err := os.MkdirTemp("", "quell-bench-cadvisor-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// Their names end with .txt, because a go.mod would hide its folder from embed.
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		text, err := cadvisorSource.ReadFile("testdata/cadvisor/" + name + ".txt")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return goBuild(ctx, dir, nil, "build", "-o", target, ".")
}

func buildBelow(ctx context.Context, target string) error {
	cargo, err := exec.LookPath("cargo")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 40*time.Minute)
	defer cancel()
	root := filepath.Dir(target)
	cmd := exec.CommandContext(ctx, cargo, "install", "below", "--version", belowVersion, "--locked", "--root", root)
	if clang, err := exec.LookPath("clang-16"); err == nil { // Debian's clang-14 fails on its BPF programs
		cmd.Env = append(os.Environ(), "CLANG="+clang)
	}
	if err := say(cmd); err != nil {
		return err
	}
	return os.Rename(filepath.Join(root, "bin", "below"), target)
}
