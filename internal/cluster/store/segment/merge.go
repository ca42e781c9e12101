package segment

import (
	"errors"
	"fmt"
	"math"

	"github.com/parquet-go/parquet-go"
)

// Input is a file to be merged. It is read in place during the merge.
type Input struct {
	Name string // for errors
	File *parquet.File
}

// Merge appends the samples of several files, all Mergeable, to w, and returns their
// number. Among samples of the same series and time those of the earlier file come first.
func Merge(w *Writer, files []Input) (rows int64, err error) {
	var all []*source
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, f := range files {
		s, err := open(f.Name, f.File)
		if err != nil {
			return 0, err
		}
		all = append(all, s)
	}
	live := make([]*source, 0, len(all))
	for _, s := range all {
		if !s.done {
			live = append(live, s)
		}
	}
	var same []*source // the sources positioned at the first series
	for len(live) > 0 {
		same = first(live, same[:0])
		series := same[0].series
		w.Series(&series)
		n, err := zip(w, &series, same)
		if err != nil {
			return rows, err
		}
		rows += n
		if w.err != nil {
			return rows, fmt.Errorf("write segment: %w", w.err)
		}
		keep := live[:0]
		for _, s := range live {
			if !s.done {
				keep = append(keep, s)
			}
		}
		live = keep
	}
	return rows, nil
}

// first returns the sources at the first series. Mostly these are all sources: agents
// send samples of all their tasks in every tick.
func first(live, same []*source) []*source {
	same = append(same, live[0])
	for _, s := range live[1:] {
		switch d := Compare(&s.series, &same[0].series); {
		case d < 0:
			same = append(same[:0], s)
		case d == 0:
			same = append(same, s)
		}
	}
	return same
}

// zip writes one series of the sources positioned at it, in time order.
func zip(w *Writer, series *Series, same []*source) (rows int64, err error) {
	for len(same) > 0 {
		// The earliest source, and the time of the next one. Mostly each file covers its
		// own stretch of time: then all rows of the earliest are copied at once.
		best, other := 0, int64(math.MaxInt64)
		for i := 1; i < len(same); i++ {
			t := same[i].now()
			if now := same[best].now(); t < now {
				best, other = i, now
			} else {
				other = min(other, t)
			}
		}
		s := same[best]
		n := s.before(other, best, same)
		w.copy(&s.Block, s.row, s.row+n)
		rows += int64(n)
		if err := s.advance(n); err != nil {
			return rows, err
		}
		if s.done || s.series != *series {
			same = append(same[:best], same[best+1:]...)
		}
	}
	return rows, nil
}

// source is one file of a merge, positioned at a row of a known series.
type source struct {
	*Reader
	name   string
	row    int // in the block
	until  int // where the series ends in the block
	series Series
	done   bool
}

func open(name string, f *parquet.File) (*source, error) {
	if !Mergeable(f) {
		return nil, fmt.Errorf("%s: %w of this version", name, ErrNotSegment)
	}
	r, err := NewReader(f)
	s := &source{Reader: r, name: name}
	if err == nil {
		err = s.nextBlock()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, errors.Join(err, s.Close()))
	}
	return s, nil
}

// advance advances by n rows, at most to the end of the series in the block.
func (s *source) advance(n int) error {
	s.row += n
	if s.row == s.N {
		if err := s.nextBlock(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	} else if s.row == s.until {
		s.findSeries()
	}
	return nil
}

// nextBlock advances to the next block.
func (s *source) nextBlock() error {
	more, err := s.Next()
	if s.row, s.done = 0, !more; more {
		s.findSeries()
	}
	return err
}

// findSeries determines the series of the row and where it ends.
func (s *source) findSeries() {
	for i := range s.series {
		s.series[i] = s.Names[i][s.Index[i][s.row]]
	}
	s.until = s.EndOfSeries(s.row)
}

// now is the time of the source's current row.
func (s *source) now() int64 { return s.TS[s.row] }

// before counts the series' rows in the block that come before the others' rows at time
// other; at least one. At equal times the earlier file's rows come first.
func (s *source) before(other int64, at int, same []*source) int {
	last := other // rows at this time are included
	for i := range at {
		if same[i].now() == other {
			last--
			break
		}
	}
	if s.TS[s.until-1] <= last {
		return s.until - s.row
	}
	n := 1
	for s.TS[s.row+n] <= last {
		n++
	}
	return n
}
