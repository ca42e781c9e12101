package parquet

import (
	"math"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
)

// Row is a sample as stored in a file, in the order of its columns. Its tags are the
// schema: other code that writes samples as Parquet writes Rows.
type Row struct {
	TS       int64    `parquet:"ts,timestamp(millisecond),delta"`
	Machine  string   `parquet:"machine,dict"`
	Job      string   `parquet:"job,dict"`
	Task     string   `parquet:"task,dict"`
	Platform string   `parquet:"platform,dict"`
	Signal   string   `parquet:"signal,dict"`
	Variant  string   `parquet:"variant,dict"`
	Class    string   `parquet:"class,dict"`
	CPU      float32  `parquet:"cpu"`
	Cost     *float32 `parquet:"cost"` // null if only the usage is known
	Coverage float32  `parquet:"coverage,dict"`
	Flags    int32    `parquet:"flags,dict"` // bits, as in sample.Flags

	Cycles        *float64 `parquet:"cycles"`
	Instructions  *float64 `parquet:"instructions"`
	LLCMisses     *float64 `parquet:"llc_misses"`
	Transactions  *float64 `parquet:"transactions"`
	Syscalls      *float64 `parquet:"syscalls"`
	WaitOther     *float64 `parquet:"wait_other"`
	WaitSelf      *float64 `parquet:"wait_self"`
	WaitThrottled *float64 `parquet:"wait_throttled"`
	Wakeups       *float64 `parquet:"wakeups"`
	Threads       *float64 `parquet:"threads"`
	CPUStall      *float64 `parquet:"cpu_stall"`
	IOOps         *float64 `parquet:"io_ops"`
	IOBytes       *float64 `parquet:"io_bytes"`
	IOTime        *float64 `parquet:"io_time"`
	NetPackets    *float64 `parquet:"net_packets"`
	NetBytes      *float64 `parquet:"net_bytes"`
	NetWait       *float64 `parquet:"net_wait"`
	NetResent     *float64 `parquet:"net_resent"`
	NetQueued     *float64 `parquet:"net_queued"`
	StolenShare   *float64 `parquet:"stolen_share"`
	WaitNiced     *float64 `parquet:"wait_niced"`
}

// tracedRow is a row of a trace. Other code that writes Rows does not know the served
// tasks.
type tracedRow struct {
	Row
	Served *string `parquet:"served"` // JSON, as in a trace (trace.AppendServed); null if it was not counted
}

// extra returns the field of an extra; nil for one that has no column.
func (r *Row) extra(e sample.Extra) **float64 {
	switch e.String() {
	case "cycles":
		return &r.Cycles
	case "instructions":
		return &r.Instructions
	case "llc_misses":
		return &r.LLCMisses
	case "transactions":
		return &r.Transactions
	case "syscalls":
		return &r.Syscalls
	case "wait_other":
		return &r.WaitOther
	case "wait_self":
		return &r.WaitSelf
	case "wait_throttled":
		return &r.WaitThrottled
	case "wakeups":
		return &r.Wakeups
	case "threads":
		return &r.Threads
	case "cpu_stall":
		return &r.CPUStall
	case "io_ops":
		return &r.IOOps
	case "io_bytes":
		return &r.IOBytes
	case "io_time":
		return &r.IOTime
	case "net_packets":
		return &r.NetPackets
	case "net_bytes":
		return &r.NetBytes
	case "net_wait":
		return &r.NetWait
	case "net_resent":
		return &r.NetResent
	case "net_queued":
		return &r.NetQueued
	case "stolen_share":
		return &r.StolenShare
	case "wait_niced":
		return &r.WaitNiced
	}
	return nil
}

// Set stores the sample in the row. The row points into the sample, which must not
// change until the row is written; extras are appended to values, which must have room
// for them and is returned grown.
func (r *Row) Set(s *sample.Sample, values []float64) []float64 {
	*r = Row{TS: int64(s.TS), Machine: s.Machine, Job: string(s.Job), Task: string(s.Task), Platform: string(s.Platform),
		Signal: string(s.Signal), Variant: s.Variant, Class: s.Class.String(), CPU: s.CPU, Coverage: s.Coverage, Flags: int32(s.Flags)}
	if !math.IsNaN(float64(s.Cost)) {
		r.Cost = &s.Cost
	}
	if s.Extras.Len() == 0 {
		return values
	}
	for _, e := range sample.AllExtras() {
		if v, ok := s.Extras.Get(e); ok {
			if field := r.extra(e); field != nil {
				values = append(values, v)
				*field = &values[len(values)-1]
			}
		}
	}
	return values
}

// set is Row.Set with the served tasks.
func (r *tracedRow) set(s *sample.Sample, values []float64) []float64 {
	r.Served = nil
	if s.Served != nil {
		text := string(trace.AppendServed(nil, s.Served))
		r.Served = &text
	}
	return r.Set(s, values)
}
