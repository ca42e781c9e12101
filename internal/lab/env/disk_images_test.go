//go:build images

package env

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/image"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// An image of quell lab image build boots, runs sysbench and stress-ng by its contract,
// and reports a full disk as the program's error. Nothing is left of it.
func TestImage(t *testing.T) {
	quelltest.Need(t, quelltest.Root, "qemu-system-x86_64")
	name := os.Getenv("QUELL_TEST_IMAGE")
	if name == "" {
		name = "bench"
	}
	var missing *guest.MissingError
	if _, err := image.Find(name, ""); errors.As(err, &missing) {
		t.Fatal(err)
	}
	exe := static(t)
	m, err := Open(Options{Hold: []string{exe, "play-hold"}, Agent: []string{exe, "play-agent"}, Prefix: testPrefix,
		Console: func(part, line string) { t.Logf("%s| %s", part, line) }})
	if err != nil {
		t.Fatal(err)
	}
	p := part(study.QEMU)
	p.Environment.Image, p.Environment.Memory, p.Environment.Accel = name, 512<<20, []string{"kvm", "tcg"}
	begin := time.Now()
	e, err := m.Make(t.Context(), p)
	if err != nil {
		t.Fatal(errors.Join(err, m.Close()))
	}
	u, err := e.Usage()
	t.Logf("ready after %v and %v of CPU time (%v)", time.Since(begin).Round(time.Second), u.Total().Round(time.Second), err)
	run := func(argv ...string) (out string, err error) {
		stdout, stderr := &said{}, &said{}
		q, err := e.Start(t.Context(), lab.Job{Argv: argv, Stdout: stdout, Stderr: stderr})
		if err == nil {
			_, _, err = q.Begin()
		}
		if err != nil {
			t.Fatal(err)
		}
		<-q.Done()
		if len(stdout.lines(role.ValueLine)) != 3 {
			t.Errorf("%q: no values from inside in %q", argv, stdout.String())
		}
		return stdout.String() + stderr.String(), q.Err()
	}
	for _, c := range []struct {
		argv  []string
		want  string
		fails bool
	}{
		{[]string{"/bench/run", "sysbench", "cpu", "20"}, "events per second", false},
		{[]string{"/bench/run", "stress-ng", "cpu", "5"}, "successful run completed", false},
		{[]string{"/bench/run", "nosuch"}, "no program nosuch in this image", true},
		{[]string{"dd", "if=/dev/zero", "of=/big", "bs=1M"}, "No space left on device", true},
	} {
		if out, err := run(c.argv...); !strings.Contains(out, c.want) || (err != nil) != c.fails {
			t.Errorf("%q: %q, %v", c.argv, out, err)
		}
	}
	tree := m.trees[false]
	if err := errors.Join(e.Close(), m.Close()); err != nil {
		t.Error(err)
	}
	if left := tree.Leftovers(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}
