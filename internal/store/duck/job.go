package duck

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/sample"
)

// Limits bound one query.
type Limits struct {
	Time     time.Duration `json:"time"`
	MemoryMB int           `json:"memory_mb"` // DuckDB's; the process may use some more
	Threads  int           `json:"threads"`
	Rows     int           `json:"rows"`  // of the answer; the rest is cut off
	Bytes    int64         `json:"bytes"` // of the answer, JSON; the rest is cut off
}

// Machine is a row of the table of machines.
type Machine struct {
	Machine  string        `json:"machine"`
	Boot     string        `json:"boot"`
	Stream   string        `json:"stream"`
	Batch    uint64        `json:"batch"` // the highest that was taken
	LastSeen sample.Millis `json:"last_seen"`
}

// Job is one query.
type Job struct {
	SQL string `json:"sql"`
	// Files are the segments of each table, with absolute paths (dialect.Files).
	Files    map[string][]string `json:"files"`
	From, To sample.Millis       // samples outside of it are not shown; 0: no bound
	Machines []Machine           `json:"machines"`
	Limits   Limits              `json:"limits"`
}

// Column is one of an answer.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"` // DuckDB's name
}

// Kind says whose fault an error is.
type Kind string

// The kinds of errors.
const (
	Refused  Kind = "refused"  // the statement is none that may be asked
	Wrong    Kind = "wrong"    // DuckDB does not understand it, or it fails
	Exceeded Kind = "exceeded" // it needs more than the limits
	Broken   Kind = "broken"   // the store, or the child
)

// Error is why there is no answer.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Remedy says what to do about it.
func (e *Error) Remedy() string {
	switch e.Kind {
	case Refused:
		return "ask with one SELECT, or EXPLAIN of one; docs/sql.md shows the tables"
	case Exceeded:
		return "ask for less: a shorter time with since and until, fewer columns, a LIMIT"
	case Broken:
		return "see the server's log"
	}
	return ""
}

func refused(format string, args ...any) *Error {
	return &Error{Refused, fmt.Sprintf(format, args...)}
}

// End is what comes after the rows.
type End struct {
	Rows      int  `json:"rows"`
	Truncated bool `json:"truncated,omitempty"` // there are more
}

// line is what the child writes: one of its fields, as JSON, on a line.
type line struct {
	Columns []Column        `json:"columns,omitempty"`
	Row     json.RawMessage `json:"row,omitempty"`
	End     *End            `json:"end,omitempty"`
	Err     *Error          `json:"error,omitempty"`
	// Fences says which of them are up; it comes first.
	Fences []string `json:"fences,omitempty"`
}
