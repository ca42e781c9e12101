package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/machine/chase"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// session runs a workload in this process.
type session struct {
	stdin    *io.PipeWriter
	progress string
	ended    chan error
}

func play(t *testing.T, ctx context.Context, s Spec, served func(time.Duration)) *session {
	r, w := io.Pipe()
	p := &session{stdin: w, progress: filepath.Join(t.TempDir(), "progress"), ended: make(chan error, 1)}
	go func() {
		p.ended <- run(ctx, s, r, p.progress, served)
		r.Close()
	}()
	return p
}

func (p *session) begin(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(p.stdin, "\n"); err != nil {
		t.Fatal(err)
	}
}

func (p *session) end(t *testing.T) {
	t.Helper()
	p.stdin.Close()
	p.wait(t)
}

func (p *session) wait(t *testing.T) {
	t.Helper()
	select {
	case err := <-p.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(4 * time.Minute):
		t.Fatal("it does not end")
	}
}

func TestProgressIsMonotonicAndEightBytes(t *testing.T) {
	for _, s := range []Spec{
		{Kind: Serve, Work: 200 * time.Microsecond, Pause: 100 * time.Microsecond},
		{Kind: Chase, Set: 64 << 10, Steps: 10_000},
	} {
		p := play(t, t.Context(), s, nil)
		p.begin(t)
		var last uint64
		seen := 0
		quelltest.Until(t, "20 values have been seen", func() bool {
			b, err := os.ReadFile(p.progress)
			if os.IsNotExist(err) {
				return false
			}
			// The file is empty only for a moment after its creation.
			if err != nil || len(b) != 8 && !(len(b) == 0 && last == 0) {
				t.Fatalf("%s: progress file holds %d bytes, %v", s.Kind, len(b), err)
			}
			if len(b) == 0 {
				return false
			}
			v, err := LoadProgress(p.progress)
			if err != nil || v < last {
				t.Fatalf("%s: progress %d after %d, %v", s.Kind, v, last, err)
			}
			if v > last {
				seen++
			}
			last = v
			return seen >= 20
		})
		p.end(t)
		if end, err := LoadProgress(p.progress); err != nil || end < last {
			t.Errorf("%s: progress %d at the end, %d before, %v", s.Kind, end, last, err)
		}
	}
}

func TestNothingHappensBeforeTheLine(t *testing.T) {
	p := play(t, t.Context(), Default(Serve), nil)
	if _, err := io.WriteString(p.stdin, "placed"); err != nil { // no newline yet
		t.Fatal(err)
	}
	p.end(t)
	if _, err := os.Stat(p.progress); !os.IsNotExist(err) {
		t.Errorf("a workload that was never let go has made its progress file: %v", err)
	}
}

func TestEveryKindRunsAndEnds(t *testing.T) {
	for _, k := range Kinds() {
		t.Run(string(k), func(t *testing.T) {
			s := Default(k)
			if k == Stream {
				s.Set = 1 << 20
			}
			ctx, cancel := context.WithCancel(t.Context())
			p := play(t, ctx, s, nil)
			p.begin(t)
			before := cpuTime()
			quelltest.Until(t, "it has used CPU time", func() bool {
				return cpuTime() > before+20*time.Millisecond
			})
			cancel()
			p.wait(t)
		})
	}
}

func TestServeReports(t *testing.T) {
	s := Spec{Kind: Serve, Work: 500 * time.Microsecond, Pause: 100 * time.Microsecond}
	var out bytes.Buffer
	reports := newReporter(&out, 20*time.Millisecond)
	p := play(t, t.Context(), s, reports.served)
	p.begin(t)
	quelltest.Until(t, "200 requests are served", func() bool {
		n, err := LoadProgress(p.progress)
		return err == nil && n >= 200
	})
	p.end(t)
	reports.end()
	served, err := LoadProgress(p.progress)
	if err != nil {
		t.Fatal(err)
	}
	var sum uint64
	var last Report
	for row := range strings.Lines(out.String()) {
		var r Report
		if err := json.Unmarshal([]byte(row), &r); err != nil {
			t.Fatalf("%q: %v", row, err)
		}
		if last.Final {
			t.Error("a line after the final one")
		}
		if last = r; !r.Final {
			sum += r.Requests
		}
		if r.P50 > r.P95 || r.P95 > r.P99 || r.P99 > r.Max || r.Requests > 0 && r.P50 < 100*time.Microsecond {
			t.Errorf("odd latencies: %+v", r)
		}
	}
	if !last.Final || last.Requests != served || sum > served || sum == 0 {
		t.Errorf("final %+v, other lines sum up to %d, progress says %d", last, sum, served)
	}
}

func TestLinkMakesOneCycle(t *testing.T) {
	set := make([]uint64, 1000*chase.Line/8)
	chase.Link(set, 3)
	seen := map[uint64]bool{}
	at := uint64(0)
	for range 1000 {
		if seen[at] || at%(chase.Line/8) != 0 {
			t.Fatalf("word %d comes again after %d steps, or is not at the start of a line", at, len(seen))
		}
		seen[at] = true
		at = chase.Walk(set, at, 1)
	}
	if at != 0 {
		t.Errorf("after all lines the chase is at %d, not where it began", at)
	}
}
