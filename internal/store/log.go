package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/atomicfile"
	"github.com/quell-dev/quell/internal/sample"
)

// commit is one file of the log: the manifest of what it adds.
type commit struct {
	Generation uint64           `json:"generation"` // its place in the log, from 1
	At         sample.Millis    `json:"at"`
	Add        []Segment        `json:"add,omitempty"`
	Remove     []string         `json:"remove,omitempty"` // files
	Marks      []sourceMark     `json:"marks,omitempty"`  // that changed
	Streams    map[string]Range `json:"streams,omitempty"`
}

// Range is which messages of a stream a commit holds, both ends included.
type Range struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

type sourceMark struct {
	Source
	Mark
}

// state is what all commits so far come to.
type state struct {
	Generation uint64             `json:"generation"`
	Segments   map[string]Segment `json:"-"`
	Marks      map[Source]Mark    `json:"-"`
	Streams    map[string]uint64  `json:"streams,omitempty"` // the last message taken
}

// checkpoint is a state as a file.
type checkpoint struct {
	state
	List  []Segment    `json:"segments"`
	Taken []sourceMark `json:"marks"`
}

const (
	logDir = "log"
	// everyCommits is how many commits a checkpoint stands for. What it replaces is
	// removed at the next one, so that who reads the log meanwhile can.
	everyCommits = 256
)

func newState() state {
	return state{Segments: map[string]Segment{}, Marks: map[Source]Mark{}, Streams: map[string]uint64{}}
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
	for stream, r := range c.Streams {
		s.Streams[stream] = max(s.Streams[stream], r.Last)
	}
}

func commitName(generation uint64) string { return fmt.Sprintf("%020d.json", generation) }

func checkpointName(generation uint64) string {
	return fmt.Sprintf("%020d.checkpoint.json", generation)
}

// readLog folds a store's log.
func readLog(dir string) (state, error) {
	s := newState()
	entries, err := os.ReadDir(filepath.Join(dir, logDir))
	if err != nil {
		return s, fmt.Errorf("read log: %w", err)
	}
	var commits []uint64
	from := uint64(0)
	for _, e := range entries {
		digits, suffix, _ := strings.Cut(e.Name(), ".")
		n, err := strconv.ParseUint(digits, 10, 64)
		switch {
		case err != nil: // a file that was not finished
		case suffix == "checkpoint.json":
			from = max(from, n)
		case suffix == "json":
			commits = append(commits, n)
		}
	}
	if from > 0 {
		var c checkpoint
		if err := readJSON(filepath.Join(dir, logDir, checkpointName(from)), &c); err != nil {
			return s, err
		}
		s.Generation = c.Generation
		maps.Copy(s.Streams, c.Streams)
		for _, seg := range c.List {
			s.Segments[seg.File] = seg
		}
		for _, m := range c.Taken {
			s.Marks[m.Source] = m.Mark
		}
	}
	slices.Sort(commits)
	for _, n := range commits {
		if n <= s.Generation {
			continue
		}
		if n != s.Generation+1 {
			return s, fmt.Errorf("read log: commit %d is missing before %d: restore %s from a copy", s.Generation+1, n, filepath.Join(dir, logDir))
		}
		var c commit
		if err := readJSON(filepath.Join(dir, logDir, commitName(n)), &c); err != nil {
			return s, err
		}
		s.apply(&c)
	}
	return s, nil
}

func readJSON(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("read log: %s: %w", path, err)
	}
	return nil
}

func writeJSON(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return atomicfile.Write(path, text, 0o644)
}

// checkpoint writes the state as one file, and removes what the last one stood for.
func (s *state) checkpoint(dir string) error {
	c := checkpoint{state: *s, List: []Segment{}, Taken: []sourceMark{}}
	for _, name := range slices.Sorted(maps.Keys(s.Segments)) {
		c.List = append(c.List, s.Segments[name])
	}
	for source, m := range s.Marks {
		c.Taken = append(c.Taken, sourceMark{source, m})
	}
	slices.SortFunc(c.Taken, func(a, b sourceMark) int { return strings.Compare(a.Source.String(), b.Source.String()) })
	if err := writeJSON(filepath.Join(dir, logDir, checkpointName(s.Generation)), &c); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(dir, logDir))
	if err != nil {
		return fmt.Errorf("clean log: %w", err)
	}
	for _, e := range entries {
		digits, _, _ := strings.Cut(e.Name(), ".")
		n, bad := strconv.ParseUint(digits, 10, 64)
		if bad == nil && n+everyCommits < s.Generation {
			// The checkpoint before this one stays, and the commits after it.
			err = errors.Join(err, os.Remove(filepath.Join(dir, logDir, e.Name())))
		}
	}
	return err
}
