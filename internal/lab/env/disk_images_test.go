//go:build images

package env

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/image"
	"github.com/quell-dev/quell/internal/lab/network"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// imageMaker makes guests from an image of quell lab image build.
func imageMaker(t *testing.T, exe string) (*Maker, string) {
	t.Helper()
	quelltest.Need(t, quelltest.Root, "qemu-system-x86_64")
	name := os.Getenv("QUELL_TEST_IMAGE")
	if name == "" {
		name = "bench"
	}
	var missing *guest.MissingError
	if _, err := image.Find(name, ""); errors.As(err, &missing) {
		t.Fatal(err)
	}
	m, err := Open(Options{Hold: []string{exe, "play-hold"}, Agent: []string{exe, "play-agent"}, Prefix: testPrefix,
		Console: func(part, line string) { t.Logf("%s| %s", part, line) }})
	if err != nil {
		t.Fatal(err)
	}
	return m, name
}

// A guest from an image has its address on the study's network, and a server in it answers a
// program on the other side of an uplink.
func TestImageOnANetwork(t *testing.T) {
	exe := static(t)
	m, name := imageMaker(t, exe)
	nets := network.With(m, map[string]study.Network{"host": {Uplink: "lan", Rate: 100e6}, "lan": {}}, []string{exe, "play-enter"})
	server, client := part(study.QEMU), part(study.Cgroup)
	server.Environment.Image, server.Environment.Memory, server.Environment.Accel = name, 512<<20, []string{"kvm", "tcg"}
	server.Environment.Network, server.Address = "host", "10.77.1.1/16"
	client.Role, client.Environment.Network, client.Address = "bg", "lan", "10.77.0.1/16"
	var envs []lab.Environment
	start := func(p *study.Part, argv ...string) (lab.Environment, lab.Process, *said) {
		e, err := nets.Make(t.Context(), p)
		if err != nil {
			t.Fatal(errors.Join(err, m.Close()))
		}
		envs = append(envs, e)
		out := &said{}
		q, err := e.Start(t.Context(), lab.Job{Argv: argv, Stdout: out, Stderr: out})
		if err == nil {
			_, _, err = q.Begin()
		}
		if err != nil {
			t.Fatal(errors.Join(err, m.Close()))
		}
		return e, q, out
	}
	e, _, says := start(server, "/usr/sbin/nginx", "-g", "daemon off;")
	on, ok := e.(interface {
		Answers(ctx context.Context, port int) error
		Traffic() (lab.Traffic, error)
	})
	if !ok {
		t.Fatal("it is on no network")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := on.Answers(ctx, 80); err != nil {
		t.Errorf("%v: %s", err, says)
	}
	_, q, out := start(client, exe, "play-get", "http://10.77.1.1/")
	<-q.Done()
	if err := q.Err(); err != nil || !strings.Contains(out.String(), "200 OK") {
		t.Errorf("%s, %v", out, err)
	}
	if traffic, err := on.Traffic(); err != nil || traffic.Sent < 1000 || traffic.Received < 100 {
		t.Errorf("%+v, %v", traffic, err)
	}
	tree := m.trees[false]
	if err := errors.Join(envs[1].Close(), e.Close(), m.Close(), nets.Close()); err != nil {
		t.Error(err)
	}
	if left := tree.Leftovers(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// An image of quell lab image build boots, runs sysbench and stress-ng by its contract,
// and reports a full disk as the program's error. Nothing is left of it.
func TestImage(t *testing.T) {
	m, name := imageMaker(t, static(t))
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
