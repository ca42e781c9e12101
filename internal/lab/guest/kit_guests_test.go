//go:build guests

package guest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// module is the import path of the module.
const module = "github.com/quell-dev/quell/"

// box is a guest that runs test binaries.
type box struct {
	Machine                                 // Kernel and Initramfs are set by run
	Init                                    // the programs in Run run before the tests
	boot     func(initramfs string) Machine // replaces Machine, with its own kernel; nil: Machine
	base     string                         // a cpio archive that is unpacked before the files; "": none
	files    []File
	tests    []insideTest
	deadline time.Duration // by the host's clock, against hanging; 0: 18 minutes
}

// insideTest is a package whose tests run in the guest.
type insideTest struct {
	pkg  string   // "internal/lab/guest/inside/cpi"
	args []string // in addition to -test.v, such as "-test.run=^TestCPI"
	tag  string   // that it is built with; "": inguest
}

// run boots the box and makes the tests that ran in it subtests of t: a test that failed
// or was skipped there fails or is skipped here. If a guest does not boot, or a package
// ran no test, t fails. Boxes run in parallel.
func (b box) run(t *testing.T) {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	initramfs := filepath.Join(dir, "initramfs")
	if b.boot == nil {
		kernel, err := Find(b.Arch)
		if err != nil {
			t.Fatal(err)
		}
		b.Machine.Kernel, b.Initramfs = kernel.Image, initramfs
	} else {
		b.Machine = b.boot(initramfs)
	}
	files := b.files
	for i, test := range b.tests {
		name := fmt.Sprintf("/tests/%d-%s.test", i, filepath.Base(test.pkg))
		files = append(files, File{Path: name, From: build(t, b.Arch, "test "+cmp.Or(test.tag, "inguest"), test.pkg)})
		b.Run = append(b.Run, append([]string{name, "-test.v=test2json", "-test.timeout=10m"}, test.args...))
	}
	w, err := os.Create(initramfs)
	if err != nil {
		t.Fatal(err)
	}
	if b.base != "" {
		from, err := os.Open(b.base)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(w, from)
		if err := errors.Join(err, from.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := Initramfs(w, build(t, b.Arch, "program", "internal/lab/guest/init"), b.Init, files...); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if b.deadline == 0 {
		b.deadline = 18 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), b.deadline)
	defer cancel()
	begin := time.Now()
	g, err := Start(ctx, b.Machine)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	run := newMirror(t)
	for line := range g.Lines() {
		run.line(line)
		if b.boot != nil && strings.Contains(line, exitLine) {
			// Sometimes Xen does not exit after its first domain has powered off.
			_ = g.cmd.Process.Kill()
		}
	}
	code, err := g.Wait()
	ran := run.end()
	t.Logf("%s guest, kernel %s: %.1f s", b.Arch, filepath.Base(b.Machine.Kernel), time.Since(begin).Seconds())
	switch {
	case err != nil:
		t.Fatal(err)
	case code != 0 && !t.Failed():
		t.Errorf("the guest's programs exited with %d, the end of its console:\n%s", code, strings.Join(g.last, "\n"))
	case ran < len(b.tests):
		t.Errorf("%d tests ran, of %d packages", ran, len(b.tests))
	}
}

// mirror converts the output of test binaries, mixed with the kernel's lines, into
// subtests, by means of test2json.
type mirror struct {
	t      *testing.T
	in     io.WriteCloser
	cmd    *exec.Cmd
	read   chan error
	events []event
}

// event is a line of test2json (go doc test2json).
type event struct{ Action, Test, Output string }

func newMirror(t *testing.T) *mirror {
	t.Helper()
	m := &mirror{t: t, cmd: exec.Command("go", "tool", "test2json"), read: make(chan error, 1)}
	var err error
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.cmd.Stderr = os.Stderr
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		d := json.NewDecoder(out)
		for {
			var e event
			if err := d.Decode(&e); err != nil {
				m.read <- err
				return
			}
			m.events = append(m.events, e)
		}
	}()
	return m
}

func (m *mirror) line(line string) { fmt.Fprintln(m.in, line) }

// end creates the subtests and returns how many ran at the top level.
func (m *mirror) end() int {
	m.t.Helper()
	m.in.Close()
	if err := <-m.read; err != io.EOF {
		m.t.Errorf("read test2json: %v", err)
	}
	if err := m.cmd.Wait(); err != nil {
		m.t.Errorf("test2json: %v", err)
	}
	top := &inside{}
	for _, e := range m.events {
		if e.Test == "" {
			continue
		}
		test := top
		for name := range strings.SplitSeq(e.Test, "/") {
			test = test.child(name)
		}
		switch e.Action {
		case "output":
			test.output.WriteString(e.Output)
		case "pass", "fail", "skip":
			test.action = e.Action
		}
	}
	for _, test := range top.children {
		test.mirror(m.t)
	}
	return len(top.children)
}

// inside is a test that ran in the guest.
type inside struct {
	name     string
	output   strings.Builder
	action   string // "" if it did not end
	children []*inside
}

func (i *inside) child(name string) *inside {
	for _, c := range i.children {
		if c.name == name {
			return c
		}
	}
	i.children = append(i.children, &inside{name: name})
	return i.children[len(i.children)-1]
}

var needs = regexp.MustCompile(`needs ([\w.-]+): (.*)`)

func (i *inside) mirror(t *testing.T) {
	t.Run(i.name, func(t *testing.T) {
		for _, c := range i.children {
			c.mirror(t)
		}
		var log strings.Builder
		for line := range strings.Lines(i.output.String()) {
			// These lines frame a test; t prints its own.
			if !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(strings.TrimSpace(line), "--- ") {
				log.WriteString(line)
			}
		}
		t.Log(strings.TrimRight("in the guest:\n"+log.String(), "\n"))
		switch i.action {
		case "pass":
		case "skip":
			if m := needs.FindStringSubmatch(i.output.String()); m != nil {
				quelltest.Skip(t, m[1], fmt.Errorf("in the guest: %s", m[2]))
			}
			t.Error("skipped without naming what it needs")
		case "fail":
			t.Fail()
		default:
			t.Error("did not end")
		}
	})
}

// bin is the output directory of programs for guests.
const bin = "../../../bin/guest"

// built are the results of the builds of this run.
var built sync.Map

// build builds a static program, or a package's test binary ("test" and its tag), for a guest
// and returns its path.
func build(t *testing.T, arch Arch, what, pkg string) string {
	t.Helper()
	type result struct {
		path string
		err  error
	}
	once, _ := built.LoadOrStore(string(arch)+what+pkg, sync.OnceValue(func() result {
		args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"}
		if tag, ok := strings.CutPrefix(what, "test "); ok {
			args = append([]string{"test", "-c", "-tags=" + tag}, args[1:]...)
		}
		path := filepath.Join(bin, string(arch)+"-"+strings.NewReplacer("/", "-", " ", "-").Replace(what+"-"+pkg))
		fresh := fmt.Sprintf("%s.%d", path, os.Getpid()) // other processes may be reading path
		cmd := exec.Command("go", append(args, "-o", fresh, module+pkg)...)
		cgo := "0"
		if what == "program with C" { // for this machine's own architecture and C library
			cgo = "1"
		}
		cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOOS=linux", "GOARCH="+string(arch))
		out, err := cmd.CombinedOutput()
		if err == nil {
			err = os.Rename(fresh, path)
		}
		if err != nil {
			err = fmt.Errorf("build %s for %s: %w\n%s", pkg, arch, err, out)
		}
		return result{path, err}
	}))
	r := once.(func() result)()
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.path
}
