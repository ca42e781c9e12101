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
	for e, field := range [...]**float64{
		sample.Cycles: &r.Cycles, sample.Instructions: &r.Instructions, sample.LLCMisses: &r.LLCMisses,
		sample.Transactions: &r.Transactions, sample.Syscalls: &r.Syscalls,
		sample.WaitOther: &r.WaitOther, sample.WaitSelf: &r.WaitSelf, sample.WaitThrottled: &r.WaitThrottled,
		sample.Wakeups: &r.Wakeups, sample.Threads: &r.Threads, sample.CPUStall: &r.CPUStall,
		sample.IOOps: &r.IOOps, sample.IOBytes: &r.IOBytes, sample.IOTime: &r.IOTime,
		sample.NetPackets: &r.NetPackets, sample.NetBytes: &r.NetBytes, sample.NetWait: &r.NetWait,
		sample.NetRetransmits: &r.NetResent, sample.NetQueued: &r.NetQueued,
		sample.StolenShare: &r.StolenShare, sample.WaitNiced: &r.WaitNiced,
	} {
		if v, ok := s.Extras.Get(sample.Extra(e)); ok {
			values = append(values, v)
			*field = &values[len(values)-1]
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
