package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
)

// incidentsLayout is Segment.Layout of segments of incidents whose rounds and suspects are
// in the tables of those. Segments of older versions have 0.
const incidentsLayout = 1

// upgradeRows is how many rows of suspects of one old segment are held in memory, about.
const upgradeRows = 1 << 16

func layoutOf(table string) int {
	if table == Incidents {
		return incidentsLayout
	}
	return 0
}

// outdated reports whether the rounds and suspects of a segment's incidents are missing.
func (seg *Segment) outdated() bool {
	return seg.Table() == Incidents && seg.Layout < incidentsLayout
}

// oldest returns the oldest outdated segment of incidents, nil if there is none.
func (s *Store) oldest(now sample.Millis) (old *Segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.state.Segments {
		if seg.outdated() && !s.resting(seg.File, now) && (old == nil || seg.File < old.File) {
			old = &seg
		}
	}
	return old
}

// upgradeSegment adds the rounds and suspects of an outdated segment. The segment itself stays; the same commit marks it.
func (s *Store) upgradeSegment(seg Segment) error {
	s.use([]Segment{seg}, 1)
	defer s.use([]Segment{seg}, -1)
	if err := s.fetch(context.Background(), []Segment{seg}); err != nil {
		return err
	}
	w := s.writer()
	err := errors.Join(s.writeParts(w, &seg), w.finish())
	s.committing.Lock()
	defer s.committing.Unlock()
	s.mu.Lock()
	now := s.state.Segments[seg.File]
	s.mu.Unlock()
	if err == nil && !now.outdated() {
		err = errConflict // another server has upgraded it, or also merged, and Refresh has read that since
	}
	if err == nil {
		seg.Layout = incidentsLayout
		err = s.commit(&commit{Add: append(w.made, seg)})
	}
	if err != nil {
		return s.failed(w, err)
	}
	return nil
}

// addParts adds the rounds and suspects of a stored incident, whose document has any times.
func (b *Batch) addParts(inc *incident.Record) {
	rounds, suspects := RoundsOf(inc), SuspectsOf(inc)
	for i := range rounds {
		inCalendar(rounds[i].times())
	}
	for i := range suspects {
		inCalendar(suspects[i].times())
	}
	b.Rounds, b.Suspects = append(b.Rounds, rounds...), append(b.Suspects, suspects...)
}

// writeParts writes the rounds and suspects of a segment's incidents. An incident that cannot be read has none.
func (s *Store) writeParts(w *writer, seg *Segment) (err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics on a damaged file
			err = fmt.Errorf("read segment %s: %v", seg.File, p)
		}
	}()
	f, err := os.Open(filepath.Join(s.dir, filepath.FromSlash(seg.File)))
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	in := parquet.NewGenericReader[Incident](f)
	defer in.Close()
	var part Batch
	flush := func() {
		writeTable(w, Rounds, part.Rounds, func(r *Round) int64 { return r.Updated })
		writeTable(w, Suspects, part.Suspects, func(r *Suspect) int64 { return r.Updated })
		part.Rounds, part.Suspects = nil, nil
	}
	rows := make([]Incident, 64)
	for err == nil {
		clear(rows)
		var n int
		n, err = in.Read(rows)
		for i := range rows[:n] {
			if inc, bad := rows[i].record(); bad == nil {
				part.addParts(inc)
			}
		}
		if len(part.Suspects) >= upgradeRows {
			flush()
		}
	}
	flush()
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("read segment %s: %w", seg.File, err)
	}
	return nil
}
