// Command apifuzz sends valid and invalid requests, derived from the server's own OpenAPI
// document, to the shipped quell-server for a given time, and checks every answer. No
// answer may be a server error, be undocumented, or differ from the documented schema,
// and the server must still run afterwards (make fuzz-api).
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	exe := flag.String("server", "bin/quell-server", "the quell-server program")
	long := flag.Duration("for", 10*time.Minute, "how long to send requests")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "random seed")
	at := flag.Int("callers", 4, "concurrent requests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	fmt.Printf("apifuzz: %s for %s, seed %d\n", *exe, *long, *seed)
	if err := run(ctx, *exe, *long, *seed, *at); err != nil {
		fmt.Fprintln(os.Stderr, "apifuzz:", err)
		os.Exit(1)
	}
}

// tally counts answers and collects errors.
type tally struct {
	mu    sync.Mutex
	by    map[string]map[int]int // operation → status → answers
	wrong []string
}

// maxWrong is the number of errors after which the run stops.
const maxWrong = 20

func (t *tally) add(op string, status int, wrong string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by[op] == nil {
		t.by[op] = map[int]int{}
	}
	t.by[op][status]++
	if wrong != "" && len(t.wrong) < maxWrong {
		t.wrong = append(t.wrong, wrong)
	}
}

func (t *tally) enough() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.wrong) >= maxWrong
}

func run(ctx context.Context, exe string, long time.Duration, seed uint64, callers int) error {
	s, err := start(ctx, exe)
	if err != nil {
		return err
	}
	defer s.stop()
	doc, err := s.document(ctx)
	if err != nil {
		return err
	}
	t := &tally{by: map[string]map[int]int{}}
	until, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			g := &generator{rand.New(rand.NewPCG(seed, uint64(i))), doc}
			for until.Err() == nil && !t.enough() {
				r := g.request()
				status, wrong := s.judge(until, r)
				if until.Err() == nil {
					t.add(r.op.name, status, wrong)
				}
			}
		})
	}
	all.Wait()
	report(t)
	// After any requests it must still answer, and stop cleanly.
	if status, _ := s.judge(context.WithoutCancel(ctx), doc.health()); status != 200 {
		t.wrong = append(t.wrong, fmt.Sprintf("afterwards /healthz answers %d; the server's log: %s", status, s.tail()))
	}
	if err := s.stop(); err != nil {
		t.wrong = append(t.wrong, fmt.Sprintf("the server ended with %v; its log: %s", err, s.tail()))
	}
	if len(t.wrong) > 0 {
		return fmt.Errorf("%d errors (seed %d):\n  %s", len(t.wrong), seed, strings.Join(t.wrong, "\n  "))
	}
	fmt.Println("no server error, no undocumented answer, no difference from a schema; the server still runs, and stops cleanly")
	return nil
}

// report prints how often each operation answered with each status.
func report(t *tally) {
	sum := 0
	for _, op := range slices.Sorted(maps.Keys(t.by)) {
		var parts []string
		for _, status := range slices.Sorted(maps.Keys(t.by[op])) {
			parts = append(parts, fmt.Sprintf("%d × %d", t.by[op][status], status))
			sum += t.by[op][status]
		}
		fmt.Printf("  %-32s %s\n", op, strings.Join(parts, ", "))
	}
	fmt.Printf("%d requests\n", sum)
}

// decode reads JSON of unknown form.
func decode(text []byte) (any, error) {
	var v any
	err := json.Unmarshal(text, &v)
	return v, err
}
