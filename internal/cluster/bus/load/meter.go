package load

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"
)

// Usage is a server's report about itself; counters count from its start.
type Usage struct {
	CPU        float64 // s
	RSS        float64 // bytes
	Samples    float64 // accepted
	Pending    float64 // accepted and not committed; records too
	Duplicates float64 // batches dropped because they were accepted before
	Rejected   float64 // samples
	Waiting    float64 // bytes of messages in memory that are not read yet
	Refused    float64 // deliveries for which there was no room
	Oldest     float64 // s that the oldest message has waited to be stored
	Commits    float64
	Merged     float64 // segments
	Segments   float64
	Rows       float64 // stored, of all tables
	Bytes      float64 // of them
}

// committed is how many samples are on the server's disk.
func (u *Usage) committed() float64 { return u.Samples - u.Pending }

// MeterURL returns a function that reads a server's /metrics.
func MeterURL(client *http.Client, url, token string) func(context.Context) (Usage, error) {
	return func(ctx context.Context) (u Usage, err error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return u, fmt.Errorf("read the server's metrics: %w", err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		if err != nil {
			return u, fmt.Errorf("read the server's metrics: %w", err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return u, fmt.Errorf("read the server's metrics: %s: %s", url, resp.Status)
		}
		return parse(resp.Body)
	}
}

// parse reads the metrics that make up a Usage; a missing one is 0.
func parse(text io.Reader) (u Usage, err error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(text)
	if err != nil {
		return u, fmt.Errorf("read the server's metrics: %w", err)
	}
	for name, into := range map[string]*float64{
		"process_cpu_seconds_total": &u.CPU, "process_resident_memory_bytes": &u.RSS,
		"quell_server_samples_total": &u.Samples, "quell_server_pending_rows": &u.Pending,
		"quell_server_duplicate_batches_total": &u.Duplicates, "quell_server_rejected_samples_total": &u.Rejected,
		"quell_server_waiting_bytes": &u.Waiting, "quell_server_refused_deliveries_total": &u.Refused, "quell_server_oldest_message_seconds": &u.Oldest,
		"quell_server_commits_total": &u.Commits, "quell_server_merged_segments_total": &u.Merged, "quell_server_segments": &u.Segments,
		"quell_server_stored_rows": &u.Rows, "quell_server_stored_bytes": &u.Bytes,
	} {
		f := families[name]
		if f == nil || len(f.Metric) == 0 {
			continue
		}
		m := f.Metric[0]
		*into = m.GetCounter().GetValue() + m.GetGauge().GetValue() // one of them is present
	}
	return u, nil
}

// reading is the state at a point in time.
type reading struct {
	at           time.Duration
	acknowledged uint64
	usage        Usage
}

// meter watches a run.
type meter struct {
	*runner
	first    Usage
	last     Usage
	peak     Usage // RSS, Waiting and Oldest: the highest
	readings []reading
	own      float64 // CPU seconds of this process before the run
	failed   error   // why the last reading of the server failed
}

func newMeter(p *runner) *meter { return &meter{runner: p, own: ownCPU()} }

// ownCPU is the CPU time of this process, s.
func ownCPU() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0 // it cannot fail on itself
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func (m *meter) begin(ctx context.Context) error {
	if m.Meter == nil {
		return nil
	}
	// A server that is busy now is asked again.
	u, err := m.Meter(ctx)
	for n := 0; err != nil && n < 10 && wait(ctx, time.Second); n++ {
		u, err = m.Meter(ctx)
	}
	m.first, m.last, m.peak = u, u, u
	return err
}

// look takes a reading. If the server does not answer now, a later call asks again.
func (m *meter) look(ctx context.Context, at time.Duration) {
	if m.Meter != nil {
		u, err := m.Meter(ctx)
		if m.failed = err; err == nil {
			m.last = u
			m.peak.RSS, m.peak.Waiting, m.peak.Oldest = max(m.peak.RSS, u.RSS), max(m.peak.Waiting, u.Waiting), max(m.peak.Oldest, u.Oldest)
		}
	}
	if at <= m.For { // then less and less is sent
		m.readings = append(m.readings, reading{at, m.acknowledged(), m.last})
	}
}

// watch takes a reading every second until ctx ends, and reports progress.
func (m *meter) watch(ctx context.Context, began time.Time) {
	var told time.Duration
	toldOf := uint64(0)
	for wait(ctx, time.Second) {
		at := time.Since(began)
		m.look(ctx, at)
		if at-told < m.Every {
			continue
		}
		now := m.acknowledged()
		due := float64(min(at, m.For)) / float64(m.Period) * float64(m.Machines*m.Tasks)
		m.Progress(Progress{Elapsed: at, Connected: int(m.connected.Load()), Acknowledged: now, Waiting: max(0, due-float64(now)),
			Rate: float64(now-toldOf) / (at - told).Seconds(), Usage: m.last})
		told, toldOf = at, now
	}
}

// Result is the result of a run. Rates are per second.
type Result struct {
	Machines int     `json:"machines"`
	Tasks    int     `json:"tasks"`
	Period   float64 `json:"period"`  // s
	Seconds  float64 `json:"seconds"` // duration of sending

	Acknowledged uint64  `json:"acknowledged"` // samples
	Rate         float64 `json:"rate"`
	Slowest      float64 `json:"slowest"` // rate of acknowledgement in the slowest ten seconds
	Batches      uint64  `json:"batches"`
	Deliveries   uint64  `json:"deliveries"` // of one or more batches each
	WireBytes    float64 `json:"wire_bytes"` // per sample
	Resends      uint64  `json:"again"`      // resends of a delivery
	AgainWhy     string  `json:"again_why,omitempty"`
	Left         uint64  `json:"left"`    // batches that were due and not sent: in agents' spools
	AckP50       float64 `json:"ack_p50"` // s, from when a batch was due
	AckP99       float64 `json:"ack_p99"`

	PlayerCPU float64 `json:"player_cpu"` // CPU-s/s

	Server *ServerResult `json:"server,omitempty"` // nil: the server was not asked
}

// ServerResult is the result as reported by the server.
type ServerResult struct {
	Committed   float64 `json:"committed"`    // samples, after it had settled
	CommitRate  float64 `json:"commit_rate"`  // during sending
	SettleAfter float64 `json:"settle_after"` // s from the last batch until all was committed
	CPU         float64 `json:"cpu"`          // CPU-s/s during sending
	PerSample   float64 `json:"per_sample"`   // CPU-µs
	PeakRSS     float64 `json:"peak_rss"`     // bytes
	PeakWaiting float64 `json:"peak_waiting"` // bytes of messages that were not read yet
	PeakOldest  float64 `json:"peak_oldest"`  // s that a message waited to be stored
	Refused     float64 `json:"refused"`      // deliveries for which there was no room
	StoredBytes float64 `json:"stored_bytes"` // per sample
	Commits     float64 `json:"commits"`
	Merged      float64 `json:"merged"` // segments
	Segments    float64 `json:"segments"`
	Duplicates  float64 `json:"twice"` // batches dropped because they were accepted before
	Rejected    float64 `json:"rejected"`
}

// result waits for the server to settle and computes the result.
func (m *meter) result(ctx context.Context, took time.Duration) (*Result, error) {
	r := &Result{Machines: m.Machines, Tasks: m.Tasks, Period: m.Period.Seconds(), Seconds: took.Seconds(),
		Acknowledged: m.acknowledged(), Batches: m.batches.Load(), Deliveries: m.deliveries.Load(), Resends: m.resends.Load(), Left: m.left.Load(),
		PlayerCPU: (ownCPU() - m.own) / took.Seconds(), Slowest: slowest(m.readings)}
	r.Rate = float64(r.Acknowledged) / took.Seconds()
	if r.Acknowledged > 0 {
		r.WireBytes = float64(m.bytes.Load()) / float64(r.Acknowledged)
	}
	if reason := m.reason.Load(); reason != nil {
		r.AgainWhy = (*reason).Error()
	}
	r.AckP50, r.AckP99 = percentiles(m.took)
	if m.Meter == nil {
		return r, nil
	}
	// The summary is also made when the user interrupts the run.
	ctx = context.WithoutCancel(ctx)
	m.look(ctx, took)
	during := m.last
	s := &ServerResult{CommitRate: (during.committed() - m.first.committed()) / took.Seconds(), CPU: (during.CPU - m.first.CPU) / took.Seconds()}
	if n := during.Samples - m.first.Samples; n > 0 {
		s.PerSample = 1e6 * (during.CPU - m.first.CPU) / n
	}
	r.Server = s
	ended := time.Now()
	settled := func() bool {
		return m.failed == nil && m.last.committed()-m.first.committed() >= float64(r.Acknowledged)
	}
	for !settled() && time.Since(ended) < m.Settle && wait(ctx, time.Second) {
		m.look(ctx, took)
	}
	last := m.last
	s.SettleAfter = time.Since(ended).Seconds()
	s.Committed, s.PeakRSS, s.PeakWaiting, s.PeakOldest = last.committed()-m.first.committed(), m.peak.RSS, m.peak.Waiting, m.peak.Oldest
	s.Refused = last.Refused - m.first.Refused
	if rows := last.Rows - m.first.Rows; rows > 0 {
		s.StoredBytes = (last.Bytes - m.first.Bytes) / rows
	}
	s.Commits, s.Merged, s.Segments = last.Commits-m.first.Commits, last.Merged-m.first.Merged, last.Segments
	s.Duplicates, s.Rejected = last.Duplicates-m.first.Duplicates, last.Rejected-m.first.Rejected
	switch {
	case m.failed != nil:
		return r, m.failed
	case !settled():
		return r, fmt.Errorf("%w: %d of %d after %s", errNotCommitted, int64(s.Committed), r.Acknowledged, m.Settle)
	}
	return r, nil
}

// slowest is the lowest rate of acknowledgement over ten seconds, or over the whole run
// if it is shorter.
func slowest(all []reading) float64 {
	const window = 10 * time.Second
	least, found := 0.0, false
	for i, from := 0, 0; i < len(all); i++ {
		for all[i].at-all[from].at > window+window/20 {
			from++
		}
		if d := all[i].at - all[from].at; d >= window-window/20 {
			if rate := float64(all[i].acknowledged-all[from].acknowledged) / d.Seconds(); !found || rate < least {
				least, found = rate, true
			}
		}
	}
	if n := len(all); !found && n > 1 {
		return float64(all[n-1].acknowledged-all[0].acknowledged) / (all[n-1].at - all[0].at).Seconds()
	}
	return least
}

// percentiles returns the median and the 99th percentile.
func percentiles(of [][]float32) (p50, p99 float64) {
	all := slices.Concat(of...)
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return float64(all[len(all)/2]), float64(all[len(all)*99/100])
}
