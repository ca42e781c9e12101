package trace

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/quell-dev/quell/internal/sample"
)

// Label says what is known to be true of a stretch of a trace: who suffered,
// whose doing it was, from when to when and what of. A task that suffers from
// several has a label for each of them. A trace that is labelled is so as a
// whole: where no label is, nobody suffered from anybody.
type Label struct {
	Machine    string          `json:"machine,omitempty"`
	Victim     sample.TaskName `json:"victim"`
	Antagonist sample.TaskName `json:"antagonist,omitempty"` // "": no neighbour's doing
	From       sample.Millis   `json:"from"`
	To         sample.Millis   `json:"to"`
	// Cause is what they contend for or, without an antagonist, what else it
	// was, in the words of whoever made the trace: cpu, cache, memory, io, net;
	// quota, steal, phase.
	Cause string `json:"cause,omitempty"`
}

// ErrLabel means that a label cannot be true.
var ErrLabel = errors.New("not a label")

// Check says why a label cannot be in a trace; nil if it can.
func (l *Label) Check() error {
	switch {
	case l.Victim == "":
		return fmt.Errorf("%w: no victim", ErrLabel)
	case l.Victim == l.Antagonist:
		return fmt.Errorf("%w: %s is its own antagonist", ErrLabel, l.Victim)
	case l.To < l.From:
		return fmt.Errorf("%w: it ends at %d before it begins at %d", ErrLabel, l.To, l.From)
	}
	for _, text := range [...]string{l.Machine, string(l.Victim), string(l.Antagonist), l.Cause} {
		if err := oneLine(text); err != nil {
			return fmt.Errorf("%w: %w", ErrLabel, err)
		}
	}
	return nil
}

// A line that begins with # is a remark. These two are read: the first says
// that the trace is labelled, and names the fields of the others.
const (
	remark      = "#"
	labelHeader = "#labels: machine,victim,antagonist,from,to,cause"
	labelPrefix = "#label: "
)

func (l *Label) append(b []byte) []byte {
	b = append(b, labelPrefix...)
	b = appendField(b, l.Machine)
	b = append(b, ',')
	b = appendField(b, string(l.Victim))
	b = append(b, ',')
	b = appendField(b, string(l.Antagonist))
	b = append(b, ',')
	b = strconv.AppendInt(b, int64(l.From), 10)
	b = append(b, ',')
	b = strconv.AppendInt(b, int64(l.To), 10)
	b = append(b, ',')
	b = appendField(b, l.Cause)
	return append(b, '\n')
}

// Labels says that the trace is labelled, and gives labels. They may come
// anywhere in a trace, also after the samples that they are about.
func (w *Writer) Labels(labels ...Label) error {
	b := w.line[:0]
	if !w.headed {
		b = w.header(b)
	}
	if !w.labelled {
		b = append(append(b, labelHeader...), '\n')
	}
	for i := range labels {
		if err := labels[i].Check(); err != nil {
			return err
		}
		start := len(b)
		if b = labels[i].append(b); len(b)-start > maxLine {
			return fmt.Errorf("%w: %w", ErrLabel, ErrLong)
		}
	}
	w.headed, w.labelled, w.line = true, true, b
	if _, err := w.w.Write(b); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}

// Labels returns the labels met so far, and whether the trace is labelled at
// all: one that is and has none is one in which nobody suffered.
func (r *Reader) Labels() (labels []Label, labelled bool) { return r.labels, r.labelled }

// remark takes in a line that begins with #.
func (r *Reader) remark(line []byte) error {
	if string(line) == labelHeader {
		r.labelled = true
		return nil
	}
	text, ok := bytes.CutPrefix(line, []byte(labelPrefix))
	if !ok {
		return nil
	}
	if !r.rows.split(text) || len(r.rows.fields) != 6 {
		return fmt.Errorf("%w: want machine,victim,antagonist,from,to,cause", ErrLabel)
	}
	l := Label{Machine: r.intern(r.rows.fields[0]), Victim: sample.TaskName(r.intern(r.rows.fields[1])),
		Antagonist: sample.TaskName(r.intern(r.rows.fields[2])), Cause: r.intern(r.rows.fields[5])}
	for i, at := range [...]*sample.Millis{3: &l.From, 4: &l.To} {
		if at == nil {
			continue
		}
		ms, err := strconv.ParseInt(string(r.rows.fields[i]), 10, 64)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrLabel, err)
		}
		*at = sample.Millis(ms)
	}
	if err := l.Check(); err != nil {
		return err
	}
	r.labels, r.labelled = append(r.labels, l), true
	return nil
}
