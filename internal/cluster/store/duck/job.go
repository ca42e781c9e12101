package duck

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Limits are the limits of one query.
type Limits struct {
	Time     time.Duration `json:"time"`
	MemoryMB int           `json:"memory_mb"` // DuckDB's; the process may use some more
	Threads  int           `json:"threads"`
	Rows     int           `json:"rows"`  // of the answer; the rest is dropped
	Bytes    int64         `json:"bytes"` // of the answer, JSON; the rest is dropped
}

// Machine is a row of the table of machines.
type Machine struct {
	Machine  string        `json:"machine"`
	Boot     string        `json:"boot"`
	Stream   string        `json:"stream"`
	Batch    uint64        `json:"batch"` // the highest accepted one
	LastSeen sample.Millis `json:"last_seen"`
}

// Job is one query.
type Job struct {
	SQL string `json:"sql"`
	// Files are the segments of each table, with absolute paths (dialect.Files).
	Files    map[string][]string `json:"files"`
	From, To sample.Millis       // samples outside are not shown; 0: no bound
	Machines []Machine           `json:"machines"`
	Limits   Limits              `json:"limits"`
}

// Kind classifies an error by its cause.
type Kind string

// The kinds of errors.
const (
	Refused  Kind = "refused"  // the statement is not allowed
	Wrong    Kind = "wrong"    // DuckDB does not understand it, or it fails
	Exceeded Kind = "exceeded" // it needs more than the limits
	Broken   Kind = "broken"   // the store or the child failed
)

// Error is why there is no answer.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Remedy says what the user can do about it.
func (e *Error) Remedy() string {
	switch e.Kind {
	case Refused:
		return "send one SELECT, or EXPLAIN of one; docs/sql.md shows the tables"
	case Exceeded:
		return "reduce the query: a shorter time with since and until, fewer columns, a LIMIT"
	case Broken:
		return "see the server's log"
	}
	return ""
}

func refused(format string, args ...any) *Error {
	return &Error{Refused, fmt.Sprintf(format, args...)}
}

// line is a line of the child's output: one of its fields, as JSON.
type line struct {
	Columns []dialect.Column `json:"columns,omitempty"`
	Row     json.RawMessage  `json:"row,omitempty"`
	End     *bool            `json:"end,omitempty"` // follows the rows; true: there are more
	Err     *Error           `json:"error,omitempty"`
	// Fences lists the active ones; it comes first.
	Fences []string `json:"fences,omitempty"`
}
