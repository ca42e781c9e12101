package replaycmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/format/trace/parquet"
)

// traceWriter is a trace to which the samples read are written: as Parquet if the name ends in
// .parquet, else as CSV.
type traceWriter struct {
	file   *os.File
	write  func(*sample.Sample) error
	labels func(...trace.Label) error
	left   func(...trace.Stretch) error
	end    func() error
}

func createTrace(name string) (*traceWriter, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("save trace: %w", err)
	}
	if filepath.Ext(name) == ".parquet" {
		w := parquet.NewWriter(f)
		return &traceWriter{f, w.Write, w.Labels, w.Unlabelled, w.Close}, nil
	}
	w := trace.NewWriter(f, sample.AllExtras()...).Served()
	return &traceWriter{f, w.Write, w.Labels, w.Unlabelled, w.Flush}, nil
}

// add writes samples; it does nothing if s is nil.
func (s *traceWriter) add(some []sample.Sample) error {
	if s == nil {
		return nil
	}
	for i := range some {
		if err := s.write(&some[i]); err != nil {
			return fmt.Errorf("save trace: %w", err)
		}
	}
	return nil
}

// close writes the labels, if the recording has them, and the end.
func (s *traceWriter) close(labels []trace.Label, left []trace.Stretch, labelled bool) error {
	if s == nil {
		return nil
	}
	var err error
	if labelled {
		err = errors.Join(s.labels(labels...), s.left(left...))
	}
	if err = errors.Join(err, s.end(), s.file.Close()); err != nil {
		return fmt.Errorf("save trace: %w", err)
	}
	return nil
}
