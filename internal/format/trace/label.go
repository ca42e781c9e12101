package trace

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Label is the truth about a stretch of a trace: the victim, the antagonist, when it
// began and ended, and the cause. A task with several antagonists has a label for each
// of them. A trace is labelled as a whole: without a label no task suffers from
// another.
type Label struct {
	Machine    string          `json:"machine,omitempty"`
	Victim     sample.TaskName `json:"victim"`
	Antagonist sample.TaskName `json:"antagonist,omitempty"` // "": caused by no neighbour
	From       sample.Millis   `json:"from"`
	To         sample.Millis   `json:"to"`
	// Cause is what they contend for or, without an antagonist, the other cause, in the
	// words of the trace's author: cpu, cache, memory, io, net; quota, steal, phase.
	Cause string `json:"cause,omitempty"`
}

// Stretch is a part of a labelled trace in which it is not known whether a task
// suffered, or it suffered too little to say. A finding about it there is neither right
// nor wrong.
type Stretch struct {
	Machine string          `json:"machine,omitempty"`
	Victim  sample.TaskName `json:"victim"`
	From    sample.Millis   `json:"from"`
	To      sample.Millis   `json:"to"`
}

// ErrLabel means that a label cannot be true, or a stretch cannot be one.
var ErrLabel = errors.New("invalid label")

// Check returns why a label cannot be in a trace; nil if it can.
func (l *Label) Check() error {
	if l.Victim != "" && l.Victim == l.Antagonist {
		return fmt.Errorf("%w: %s is its own antagonist", ErrLabel, l.Victim)
	}
	return checkStretch(l.Machine, l.Victim, l.From, l.To, string(l.Antagonist), l.Cause)
}

// Check returns why a stretch cannot be in a trace; nil if it can.
func (s *Stretch) Check() error { return checkStretch(s.Machine, s.Victim, s.From, s.To) }

func checkStretch(machine string, victim sample.TaskName, from, to sample.Millis, others ...string) error {
	switch {
	case victim == "":
		return fmt.Errorf("%w: no victim", ErrLabel)
	case to < from:
		return fmt.Errorf("%w: end %d is before begin %d", ErrLabel, to, from)
	}
	for _, text := range append(others, machine, string(victim)) {
		if err := oneLine(text); err != nil {
			return fmt.Errorf("%w: %w", ErrLabel, err)
		}
	}
	return nil
}

// A line that begins with # is a remark. The following ones are read: the first says
// that the trace is labelled, and names the fields of labels.
const (
	remark        = "#"
	labelFields   = "machine,victim,antagonist,from,to,cause"
	stretchFields = "machine,victim,from,to"
	labelHeader   = "#labels: " + labelFields
	labelPrefix   = "#label: "
	stretchPrefix = "#unlabelled: "
)

func (l *Label) append(b []byte) []byte {
	return appendRemark(b, labelPrefix, l.Machine, string(l.Victim), string(l.Antagonist), decimal(l.From), decimal(l.To), l.Cause)
}

func (s *Stretch) append(b []byte) []byte {
	return appendRemark(b, stretchPrefix, s.Machine, string(s.Victim), decimal(s.From), decimal(s.To))
}

func decimal(at sample.Millis) string { return strconv.FormatInt(int64(at), 10) }

func appendRemark(b []byte, prefix string, fields ...string) []byte {
	for _, f := range fields {
		b = appendField(append(b, prefix...), f)
		prefix = ","
	}
	return append(b, '\n')
}

// Labels marks the trace as labelled, and writes labels. They may come anywhere in a
// trace, also after the samples that they are about.
func (w *Writer) Labels(labels ...Label) error { return remarks(w, labels) }

// Unlabelled marks the trace as labelled except for stretches. They may come anywhere
// in a trace.
func (w *Writer) Unlabelled(stretches ...Stretch) error { return remarks(w, stretches) }

func remarks[T any, P interface {
	*T
	Check() error
	append([]byte) []byte
}](w *Writer, all []T) error {
	b := w.line[:0]
	if !w.headed {
		b = w.header(b)
	}
	if !w.labelled {
		b = append(append(b, labelHeader...), '\n')
	}
	for i := range all {
		one := P(&all[i])
		if err := one.Check(); err != nil {
			return err
		}
		start := len(b)
		if b = one.append(b); len(b)-start > maxLine {
			return fmt.Errorf("%w: %w", ErrLabel, ErrLong)
		}
	}
	w.headed, w.labelled, w.line = true, true, b
	if _, err := w.w.Write(b); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}

// Contents is what a reader has read so far of a trace besides its samples.
type Contents struct {
	Found    Report
	Known    []Label
	Unknown  []Stretch
	Labelled bool
}

// Report returns what was found so far.
func (c *Contents) Report() Report { return c.Found }

// Labels returns the labels read so far, and whether the trace is labelled at all: in a
// labelled trace without labels no task suffered.
func (c *Contents) Labels() (labels []Label, labelled bool) { return c.Known, c.Labelled }

// Unlabelled returns the stretches read so far, about which labels say nothing.
func (c *Contents) Unlabelled() []Stretch { return c.Unknown }

// parseComment parses a line that begins with #.
func (r *Reader) parseComment(line []byte) error {
	if string(line) == labelHeader {
		r.Labelled = true
		return nil
	}
	if text, ok := bytes.CutPrefix(line, []byte(labelPrefix)); ok {
		f, from, to, err := r.span(text, labelFields, 3)
		if err != nil {
			return err
		}
		l := Label{Machine: r.names.Intern(f[0]), Victim: sample.TaskName(r.names.Intern(f[1])), Antagonist: sample.TaskName(r.names.Intern(f[2])),
			From: from, To: to, Cause: r.names.Intern(f[5])}
		if err := l.Check(); err != nil {
			return err
		}
		r.Known, r.Labelled = append(r.Known, l), true
	}
	if text, ok := bytes.CutPrefix(line, []byte(stretchPrefix)); ok {
		f, from, to, err := r.span(text, stretchFields, 2)
		if err != nil {
			return err
		}
		s := Stretch{Machine: r.names.Intern(f[0]), Victim: sample.TaskName(r.names.Intern(f[1])), From: from, To: to}
		if err := s.Check(); err != nil {
			return err
		}
		r.Unknown, r.Labelled = append(r.Unknown, s), true
	}
	return nil
}

// span cuts a remark into the fields that want names; the two from index at on are
// times.
func (r *Reader) span(text []byte, want string, at int) (fields [][]byte, from, to sample.Millis, err error) {
	fields, ok := r.rows.Split(text)
	if !ok || len(fields) != strings.Count(want, ",")+1 {
		return nil, 0, 0, fmt.Errorf("%w: want %s", ErrLabel, want)
	}
	for i, t := range [...]*sample.Millis{&from, &to} {
		ms, err := strconv.ParseInt(string(fields[at+i]), 10, 64)
		if err != nil {
			return nil, 0, 0, fmt.Errorf("%w: %w", ErrLabel, err)
		}
		*t = sample.Millis(ms)
	}
	return fields, from, to, nil
}
