package store

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
)

// machines is the number of sending machines in the crash test.
const machines = 3

// ingestForEver is the child process that is killed. It adds batches of three machines in
// order, redelivered from the last acknowledged one on, commits, merges, and writes the
// acknowledged numbers to its standard output.
func ingestForEver(dir string) {
	c := &clock{start.Add(time.Hour)}
	s, err := Open(dir, c.options())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	acked, err := strconv.ParseUint(os.Getenv("QUELL_TEST_ACKED"), 10, 64)
	if err != nil {
		os.Exit(1)
	}
	fmt.Println(acked) // it is running
	rng := rand.New(rand.NewPCG(acked, uint64(os.Getpid())))
	for n := acked; ; {
		for range 1 + rng.IntN(5) {
			n++
			for m := range machines {
				s.Add(tick(fmt.Sprint("m", m), "a", n, 4))
			}
		}
		if err := s.Flush(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(n)
		if _, err := s.Compact(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		c.now = c.now.Add(30 * time.Second)
		if err := s.Retain(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// TestExactlyOnceOverKills kills the ingest at random points, 8 times or QUELL_TEST_KILLS
// times, half of them after an acknowledgement. Everything acknowledged is stored once, and
// redelivered batches are not stored twice.
func TestExactlyOnceOverKills(t *testing.T) {
	kills := 8
	if text := os.Getenv("QUELL_TEST_KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		kills = n
	}
	dir := t.TempDir()
	acked := uint64(0)
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for n := range kills {
		// One in four may be killed while it opens the store.
		acked = ingestUntilKilled(t, dir, acked, n%4, rng)
	}
	if acked == 0 {
		t.Fatal("nothing was acknowledged between the kills")
	}
	s := open(t, dir, (&clock{start.Add(time.Hour)}).options())
	seen := map[string]int{}
	rows := read[trace.Row](t, dir, Samples)
	for i := range rows {
		seen[text(&rows[i])]++
	}
	for n := uint64(1); n <= acked; n++ {
		for m := range machines {
			for _, r := range rowsOf(tick(fmt.Sprint("m", m), "a", n, 4)) {
				if seen[text(&r)] != 1 {
					t.Fatalf("a sample of batch %d of %d is there %d times", n, acked, seen[text(&r)])
				}
			}
		}
	}
	for row, n := range seen {
		if n != 1 {
			t.Fatalf("%s is there %d times", row, n)
		}
	}
	st := s.Stats()
	t.Logf("%d kills: %d batches of each machine acknowledged, %d rows in %d segments", kills, acked, len(rows), st.Segments)
}

// ingestUntilKilled lets a child ingest from the acknowledged number on, kills it some time after it
// has written so many lines, and returns what it acknowledged.
func ingestUntilKilled(t *testing.T, dir string, acked uint64, lines int, rng *rand.Rand) uint64 {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "QUELL_TEST_INGEST="+dir, "QUELL_TEST_ACKED="+strconv.FormatUint(acked, 10))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewScanner(out)
	hear := func() bool {
		if !in.Scan() {
			return false
		}
		if n, err := strconv.ParseUint(in.Text(), 10, 64); err == nil { // else it was cut off by the kill
			acked = n
		}
		return true
	}
	for range lines {
		hear()
	}
	kill := time.AfterFunc(time.Duration(rng.Int64N(int64(400*time.Millisecond))), func() { cmd.Process.Kill() })
	defer kill.Stop()
	for hear() {
	}
	_ = cmd.Wait() // it was killed
	if errs.Len() > 0 {
		t.Fatalf("ingest: %s", errs.String())
	}
	return acked
}

// TestACommitThatCouldNotBeRemoved: storage has not removed one of the commits that a checkpoint
// replaces. A store that is opened, and one that is open in another server, read the others.
func TestACommitThatCouldNotBeRemoved(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, v any) {
		t.Helper()
		text, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, logDir), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, left := range []uint64{1, 101} {
		put(commitName(left), &commit{Generation: left, Add: []Segment{{File: "samples/left"}}})
	}
	for n := uint64(everyCommits); n <= 2*everyCommits+2; n++ {
		put(commitName(n), &commit{Generation: n})
	}
	put(checkpointName(everyCommits), &checkpoint{Generation: everyCommits})
	put(checkpointName(2*everyCommits), &checkpoint{Generation: 2 * everyCommits, Segments: []Segment{{File: "samples/good"}}})
	for _, from := range []uint64{0, 100, everyCommits - 1, everyCommits + 7, 2 * everyCommits} {
		old := newState()
		old.Generation = from
		got, read, err := readLog(t.Context(), folder{dir}, old)
		if err != nil || got.Generation != 2*everyCommits+2 {
			t.Errorf("from %d: %d, %v", from, got.Generation, err)
		}
		// What leads on from a state is read one by one: a server looks for its own commits there.
		if each := from >= everyCommits-1; each != (len(read) == int(2*everyCommits+2-from)) || each == (len(got.Segments) == 1) {
			t.Errorf("from %d: %d were read, %v", from, len(read), got.Segments)
		}
	}
}
