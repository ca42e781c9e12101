// Package helper runs the lab's commands elsewhere: on another host, in a container or in
// a guest. A helper there serves the lab over a connection, as lines of JSON; a Client is
// the lab's side. Package remote starts helpers over SSH, package env as the first
// process of containers and guests.
package helper

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// frame is one line of the protocol between a lab and its helper, as JSON. A request of
// the lab has an ID, and its answer has the same. Times are ns of the sender's
// CLOCK_MONOTONIC.
//
//	lab:    beat | ping ID | make ID Part | start ID Env Proc Job | begin ID Proc NS | stop ID Proc
//	        pin ID Env Sets | pinned, usage, threads, ready, close ID Env | freeze ID Env Stop | listens ID Port | bye ID
//	        observe ID Watch NS | window ID Yes | conclude ID | energy ID Window
//	helper: hello Text | beat | answer ID … | out Proc FD Text | exit Proc Text | second Sample Evidence
type frame struct {
	Op      string      `json:"op"`
	ID      int         `json:"id,omitempty"`
	Env     int         `json:"env,omitempty"`
	Proc    int         `json:"proc,omitempty"`
	NS      int64       `json:"ns,omitempty"`
	Within  int64       `json:"within,omitempty"`
	Part    *study.Part `json:"part,omitempty"`
	Job     *job        `json:"job,omitempty"`
	Sets    []string    `json:"sets,omitempty"`
	Usage   *lab.Usage  `json:"usage,omitempty"`
	Threads []int       `json:"threads,omitempty"`
	Yes     bool        `json:"yes,omitempty"` // the argument of freeze; the answer to ready
	Port    int         `json:"port,omitempty"`

	// Of an observation.
	Watch    *watched          `json:"watch,omitempty"`
	Sample   *result.Sample    `json:"sample,omitempty"`
	Evidence []result.Evidence `json:"evidence,omitempty"`
	Parts    []result.Part     `json:"parts,omitempty"`
	Window   *result.Window    `json:"window,omitempty"`
	Joules   float64           `json:"joules,omitempty"`
	FD       int               `json:"fd,omitempty"`
	Text     string            `json:"text,omitempty"`
	Failed   *failure          `json:"failed,omitempty"`
}

// job is lab.Job in its wire format.
type job struct {
	Name  string   `json:"name"`
	Argv  []string `json:"argv"`
	Dir   string   `json:"dir,omitempty"`
	Env   []string `json:"env,omitempty"`
	Waits bool     `json:"waits,omitempty"`
}

// failure is an error in its wire format.
type failure struct {
	Text   string `json:"text"`
	Lack   string `json:"lack,omitempty"` // of a *lab.LackError
	Remedy string `json:"remedy,omitempty"`
}

func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: err.Error()}
	if lack := (*lab.LackError)(nil); errors.As(err, &lack) {
		f.Lack, f.Remedy = lack.What, lack.Remedy
	}
	return f
}

// with returns the error, with a prefix.
func (f *failure) with(prefix string) error {
	switch {
	case f == nil:
		return nil
	case f.Lack != "":
		return &lab.LackError{What: prefix + f.Lack, Remedy: f.Remedy}
	}
	return errors.New(prefix + f.Text)
}

// mostLine bounds a frame; mostText bounds the program output in it.
const (
	mostLine = 16 << 20 // of the audit of a run with many threads
	mostText = 64 << 10
)

// wire sends and receives frames. A serial line may also carry noise, such as kernel
// messages: lines that are not frames are skipped.
type wire struct {
	lines *bufio.Scanner
	mu    sync.Mutex
	to    io.Writer
}

func newWire(from io.Reader, to io.Writer) *wire {
	w := &wire{lines: bufio.NewScanner(from), to: to}
	w.lines.Buffer(nil, mostLine)
	return w
}

func (w *wire) send(f frame) error {
	text, err := json.Marshal(&f)
	if err != nil {
		return fmt.Errorf("send %s: %w", f.Op, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.to.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("send %s: %w", f.Op, err)
	}
	return nil
}

// receive returns the next frame, or io.EOF.
func (w *wire) receive() (frame, error) {
	for w.lines.Scan() {
		var f frame
		if json.Unmarshal(w.lines.Bytes(), &f) == nil && f.Op != "" {
			return f, nil
		}
	}
	if err := w.lines.Err(); err != nil {
		return frame{}, fmt.Errorf("receive: %w", err)
	}
	return frame{}, io.EOF
}

func setsOf(texts []string) ([]sample.Set, error) {
	var all []sample.Set
	for _, text := range texts {
		s, err := sample.ParseSet(text)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func textsOf(sets []sample.Set) []string {
	var all []string
	for _, s := range sets {
		all = append(all, s.String())
	}
	return all
}
