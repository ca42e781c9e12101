package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/cluster/bus/load"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// several is a set of servers in separate processes, with one NATS server and one bucket.
type several struct {
	t       *testing.T
	a       *authority.Authority
	nats    *embedded.Server
	storage string
}

type process struct {
	r   running // for its API
	cmd *exec.Cmd
}

func (s *several) start(i int) *process {
	s.t.Helper()
	p := &process{r: running{t: s.t, api: quelltest.FreeAddress(s.t), state: s.t.TempDir()}}
	creds := filepath.Join(s.t.TempDir(), "server.creds")
	text, err := s.a.Issue(authority.Server, fmt.Sprint("server-", i), 0)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(creds, text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0], "--set", "state_dir="+p.r.state, "--set", "listen="+p.r.api, "--set", "bus.url="+s.nats.URL(), "--set", "bus.credentials="+creds,
		"--set", "store.s3.bucket=quell", "--set", "store.s3.endpoint="+s.storage, "--set", "store.flush=200ms", "--set", "store.upkeep=1s", "--set", "log_level=error", "--set", "query.memory_mb=100")
	p.cmd.Env = append(os.Environ(), asServer+"=1")
	p.cmd.Stderr = s.t.Output()
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(p.kill)
	quelltest.Until(s.t, "the server is ready", quelltest.Paced(func() bool {
		status, _ := p.r.get("/readyz")
		return status == http.StatusOK
	}))
	return p
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// taken reports whether a server has ingested samples itself.
func (p *process) taken() bool {
	status, text := p.r.get("/metrics")
	return status == http.StatusOK && !strings.Contains(text, "quell_server_samples_total 0\n")
}

// TestOneOfTwoServersIsKilled: two servers share a NATS server and a bucket. One ingests
// and both answer. It is killed under load, and the other takes over. Every server then
// has everything acknowledged exactly once.
func TestOneOfTwoServersIsKilled(t *testing.T) {
	url := quelltest.NewS3(t, "quell").URL
	a, err := authority.Load(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	trust, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	nats, err := embedded.Start(embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"}, trust)
	if err != nil {
		t.Fatal(err)
	}
	defer nats.Close()
	s := &several{t, a, nats, url}
	servers := []*process{s.start(0), s.start(1)}
	creds := t.TempDir()
	played := make(chan *load.Result, 1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		r, err := load.Run(ctx, load.Options{Machines: 5, Tasks: 4, Period: 100 * time.Millisecond, For: time.Hour, Finish: time.Minute, URL: nats.URL(), Every: time.Second,
			Credentials: func(machine string) (string, error) {
				text, err := a.Issue(authority.Agent, machine, time.Hour)
				if err != nil {
					return "", err
				}
				path := filepath.Join(creds, machine)
				return path, os.WriteFile(path, text, 0o600)
			}})
		if err != nil {
			t.Error(err)
		}
		played <- r
	}()
	some := func(p *process) bool {
		n := p.r.sql("SELECT count(*) FROM samples")
		return strings.HasPrefix(n, "[") && n != "[0]"
	}
	var first, second *process // the one that takes in, mostly the one that was started first
	quelltest.Until(t, "both return what one has accepted", quelltest.Paced(func() bool {
		for i, p := range servers {
			if p.taken() {
				first, second = p, servers[1-i]
				return some(first) && some(second)
			}
		}
		return false
	}))
	if second.taken() {
		t.Error("both take in")
	}
	first.kill()
	quelltest.Until(t, "the other takes in", quelltest.Paced(second.taken))
	third := s.start(2) // replaces the killed one
	stop()
	r := <-played
	if r == nil || r.Acknowledged == 0 {
		t.Fatal("nothing was acknowledged")
	}
	want, err := json.Marshal([]any{r.Acknowledged, r.Acknowledged})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*process{second, third} {
		last := ""
		t.Cleanup(func() { t.Logf("%s, want %s", last, want) })
		quelltest.Until(t, "all that was acknowledged is there", quelltest.Paced(func() bool {
			last = p.r.sql("SELECT count(*), count(DISTINCT machine || task || ts) FROM samples")
			return last == string(want)
		}))
	}
	out, err := quellServer(t, "segments", "samples", "--set", "store.s3.bucket=quell", "--set", "store.s3.endpoint="+url)
	if err != nil || !strings.HasPrefix(out, "s3://quell/samples/day=") {
		t.Errorf("segments: %.200q, %v", out, err)
	}
}
