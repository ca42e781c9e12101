package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/quell-dev/quell/internal/core/sample"
)

// commit is one file of the log: the manifest of its additions.
type commit struct {
	Generation uint64        `json:"generation"`   // number in the log, from 1
	ID         string        `json:"id,omitempty"` // the same for every attempt
	At         sample.Millis `json:"at"`
	Add        []Segment     `json:"add,omitempty"`
	Remove     []string      `json:"remove,omitempty"` // files
	Marks      sourceMarks   `json:"marks,omitempty"`  // the changed ones
}

// state is the result of all commits so far.
type state struct {
	Generation uint64
	Segments   map[string]Segment
	Marks      map[Source]Mark
}

// checkpoint is the file form of a state.
type checkpoint struct {
	Generation uint64      `json:"generation"`
	Segments   []Segment   `json:"segments"`
	Marks      sourceMarks `json:"marks"`
}

const (
	logDir = "log"
	// everyCommits is how many commits a checkpoint replaces. They are removed at the
	// next checkpoint, so that concurrent readers of the log still find them.
	everyCommits = 256
)

func newState() state {
	return state{Segments: map[string]Segment{}, Marks: map[Source]Mark{}}
}

func (s *state) apply(c *commit) {
	s.Generation = c.Generation
	for _, name := range c.Remove {
		delete(s.Segments, name)
	}
	for _, seg := range c.Add {
		s.Segments[seg.File] = seg
	}
	for _, m := range c.Marks {
		s.Marks[m.Source] = m.Mark
	}
}

func commitName(generation uint64) string { return fmt.Sprintf("%s/%020d.json", logDir, generation) }

func checkpointName(generation uint64) string {
	return fmt.Sprintf("%s/%020d.checkpoint.json", logDir, generation)
}

// listLog returns the numbers of a log's commits, sorted, and of its newest checkpoint.
func listLog(ctx context.Context, b Bucket) (found []uint64, checkpoint uint64, err error) {
	entries, err := b.List(ctx, logDir)
	if err != nil {
		return nil, 0, fmt.Errorf("read log: %w", err)
	}
	for _, e := range entries {
		digits, suffix, _ := strings.Cut(e.Name[len(logDir)+1:], ".")
		n, err := strconv.ParseUint(digits, 10, 64)
		switch {
		case err != nil: // an unfinished file
		case suffix == "checkpoint.json":
			checkpoint = max(checkpoint, n)
		case suffix == "json":
			found = append(found, n)
		}
	}
	slices.Sort(found)
	return found, checkpoint, nil
}

// readLog applies the commits of a store's log that follow a state, which may be empty.
// It returns the new state and the IDs of the commits that were read one by one.
func readLog(ctx context.Context, b Bucket, old state) (state, []string, error) {
	found, from, err := listLog(ctx, b)
	if err != nil {
		return old, nil, err
	}
	if _, there := slices.BinarySearch(found, old.Generation); !there && from < old.Generation {
		return old, nil, fmt.Errorf("read log: %s has no commit %d, which this server knows: was it restored from a copy? Restart all its servers", b.URL(logDir), old.Generation)
	}
	s := old.clone()
	if from > s.Generation && !leads(found, s.Generation+1, from) {
		if s, err = readCheckpoint(ctx, b, from); err != nil {
			return old, nil, err
		}
	}
	var read []string
	next, _ := slices.BinarySearch(found, s.Generation+1)
	for part := range slices.Chunk(found[next:], atOnce) {
		commits := make([]commit, len(part))
		all, ctx := errgroup.WithContext(ctx)
		for i, n := range part {
			all.Go(func() error { return readJSON(ctx, b, commitName(n), &commits[i]) })
		}
		if err := all.Wait(); err != nil {
			return old, nil, err
		}
		for i, n := range part {
			if n != s.Generation+1 {
				return old, nil, fmt.Errorf("read log: commit %d is missing before %d: restore %s from a backup", s.Generation+1, n, b.URL(logDir))
			}
			s.apply(&commits[i])
			read = append(read, commits[i].ID)
		}
	}
	return s, read, nil
}

// withdraw removes a commit that has just been made if it is not part of the log; the error is then fs.ErrExist. Its
// number was free and is not the next one: while this server stood still, others have made a commit with it, and
// removed that after a checkpoint. Or the bucket was restored from a copy, which lacks the commit before.
func withdraw(ctx context.Context, b Bucket, n uint64) error {
	found, from, err := listLog(ctx, b)
	if err != nil {
		return err
	}
	_, follows := slices.BinarySearch(found, n-1)
	if from <= n+everyCommits && (follows || from+1 >= n) { // no checkpoint has removed n, and nothing before it is missing
		return nil
	}
	if err := b.Remove(ctx, commitName(n)); err != nil {
		return err
	}
	return fmt.Errorf("commit %d does not follow the log's newest: %w", n, fs.ErrExist)
}

// leads reports whether commits lead on from a state to a checkpoint: sorted numbers have all from one
// to another. Of those that a checkpoint replaces, one may be left that could not be removed.
func leads(found []uint64, first, last uint64) bool {
	i, next := slices.BinarySearch(found, first)
	n := last - first
	return next && n < uint64(len(found)-i) && found[i+int(n)] == last
}

func readCheckpoint(ctx context.Context, b Bucket, n uint64) (state, error) {
	s := newState()
	var c checkpoint
	if err := readJSON(ctx, b, checkpointName(n), &c); err != nil {
		return s, err
	}
	s.apply(&commit{Generation: c.Generation, Add: c.Segments, Marks: c.Marks})
	return s, nil
}

func (s *state) clone() state {
	return state{Generation: s.Generation, Segments: maps.Clone(s.Segments), Marks: maps.Clone(s.Marks)}
}

func readJSON(ctx context.Context, b Bucket, name string, v any) error {
	text, err := b.Read(ctx, name)
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("read log: %s: %w", b.URL(name), err)
	}
	return nil
}

func createJSON(ctx context.Context, b Bucket, name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return b.Create(ctx, name, text)
}

// checkpoint writes the state as one file and removes what the previous one replaced.
func (s *state) checkpoint(ctx context.Context, b Bucket) error {
	c := checkpoint{Generation: s.Generation, Segments: []Segment{}, Marks: listMarks(s.Marks)}
	for _, name := range slices.Sorted(maps.Keys(s.Segments)) {
		c.Segments = append(c.Segments, s.Segments[name])
	}
	if err := createJSON(ctx, b, checkpointName(s.Generation), &c); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	entries, err := b.List(ctx, logDir)
	if err != nil {
		return fmt.Errorf("clean log: %w", err)
	}
	var old []string
	for _, e := range entries {
		digits, _, _ := strings.Cut(e.Name[len(logDir)+1:], ".")
		n, bad := strconv.ParseUint(digits, 10, 64)
		if bad == nil && n+everyCommits < s.Generation {
			// The previous checkpoint stays, and the commits after it.
			old = append(old, e.Name)
		}
	}
	_, err = removeAll(ctx, old, b.Remove)
	return err
}
