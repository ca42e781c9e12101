package dialect

import (
	_ "embed" // specs.sql
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

//go:embed specs.sql
var specsSQL string

// Specs is the paper's aggregation (CPI², section 3.1) over the table of samples. For
// each job, platform, signal and variant it returns the mean and standard deviation of
// the cost. The weight of each sample is AgeWeight to the power of its hour's age in
// days, and the divisor is the sum of the weights, not the number of samples. Machines are
// bounded in their influence as by spec.Learn. SpecsOf reads the result.
//
// Samples that detection would not judge are not learnt from (spec.Filter), nor are samples
// of a victim from the first bad interval of an incident to its end, unless the incident
// is a lasting change, which the spec follows, nor revoked ones: the windows without a task.
//
// Spark executes it (specs.engine: sc://…). In DuckDB only tests do, which compare its
// result with that of package digest.
//
// One pass over the samples: sums for each task, whose moments are then merged by machine and
// by key (Chan, Golub and LeVeque, 1979), as in stat.Moments.
func (d Dialect) Specs(p spec.Params, revoked []store.Window, now sample.Millis) string {
	millis := func(column string) string { return fmt.Sprintf(d.millis, column) }
	return strings.NewReplacer(
		"{now}", d.At(now), "{now_ms}", fmt.Sprint(int64(now)), "{now_hour}", fmt.Sprint(int64(now)/spec.HourMS), "{hour_ms}", fmt.Sprint(spec.HourMS),
		"{sample_ms}", millis("s.ts"), "{newest_ms}", millis("newest"), "{stale_ms}", fmt.Sprint(p.StaleAfter.Milliseconds()),
		"{min_samples}", fmt.Sprint(p.MinSamples), "{min_tasks}", fmt.Sprint(p.MinTasks),
		"{log_weight}", decay(p), "{excluded_flags}", fmt.Sprint(int(spec.ExcludedFlags)), "{sample_filter}", d.sampleFilter(), "{most_cpu}", double(math.MaxFloat32),
		"{min_machines}", fmt.Sprint(p.MinMachines), "{revoked}", d.notRevoked(revoked), "{instance}", fmt.Sprintf(d.matches, "job", d.Quote(spec.InstancePattern)),
		"{self}", d.self(),
		"{votes}", fmt.Sprint(spec.Votes), "{outlying_part}", fmt.Sprint(spec.OutlyingPart), "{fence}", double(spec.Fence), "{mad_sigma}", double(spec.MADSigma), "{effect}", d.effect(),
	).Replace(strings.TrimSpace(specsSQL))
}

// sampleFilter is spec.Filter of each signal. A join with the table of signals would lose the
// dictionaries by which DuckDB groups: five times as long.
func (d Dialect) sampleFilter() string {
	var all []string
	for _, s := range sample.Signals() {
		rule, _ := spec.FilterOf(s.Name) // it is one of those
		c := fmt.Sprintf("s.signal = %s AND s.cost >= %s", d.Quote(string(s.Name)), double(rule.Least))
		if rule.Most < math.MaxFloat64 {
			c += " AND s.cost <= " + double(rule.Most)
		}
		if !math.IsInf(rule.LeastCPU, -1) {
			c += " AND s.cpu >= " + double(rule.LeastCPU)
		}
		all = append(all, c)
	}
	return strings.Join(all, "\n      OR ")
}

// self is spec.Filter.Self of a sample; null if it is not known.
func (d Dialect) self() string {
	text := "CASE"
	for _, s := range sample.Signals() {
		rule, _ := spec.FilterOf(s.Name)
		if !rule.SelfApart {
			continue
		}
		const self = "s.wait_self * CAST(s.cost AS DOUBLE) / s.wait_other"
		text += fmt.Sprintf("\n         WHEN s.signal = %[1]s AND s.wait_self = 0 THEN 0e0"+
			"\n         WHEN s.signal = %[1]s AND s.wait_self > 0 AND s.wait_other > 0 AND s.cost > 0 AND %[2]s <= %[3]s THEN %[2]s",
			d.Quote(string(s.Name)), self, double(rule.Most))
	}
	return text + " END"
}

// notRevoked are the conditions that keep out revoked samples.
func (d Dialect) notRevoked(windows []store.Window) string {
	var b strings.Builder
	for _, w := range windows {
		if w.Task != "" {
			continue
		}
		fmt.Fprintf(&b, "\n    AND NOT (s.ts >= %s AND s.ts <= %s", d.At(w.From), d.At(w.To))
		if w.Machine != "" {
			b.WriteString(" AND s.machine = " + d.Quote(w.Machine))
		}
		if w.Job != "" {
			b.WriteString(" AND s.job = " + d.Quote(string(w.Job)))
		}
		b.WriteString(")")
	}
	return b.String()
}

// effect is the signal's least effect on a cost of the size of middle.
func (d Dialect) effect() string {
	text := "CASE signal"
	for _, s := range sample.Signals() {
		text += fmt.Sprintf(" WHEN %s THEN greatest(%s, %s * middle)", d.Quote(string(s.Name)), double(s.EffectAbs), double(s.EffectRel))
	}
	return text + " ELSE 0e0 END"
}

// decay is the natural logarithm of the factor by which a weight decreases per hour.
func decay(p spec.Params) string {
	return fmt.Sprintf("(ln(CAST(%s AS DOUBLE)) / 24)", strconv.FormatFloat(p.AgeWeight, 'g', -1, 64))
}

// SpecsOf reads the rows of the result of Specs, each a JSON list. Stored specs also have
// the time of their computation and their version.
func SpecsOf(rows []json.RawMessage, now sample.Millis) ([]store.Spec, error) {
	all := make([]store.Spec, 0, len(rows))
	for _, row := range rows {
		s := store.Spec{At: int64(now)}
		into := []any{&s.Job, &s.Platform, &s.Signal, &s.Variant, &s.State, &s.Tasks, &s.Samples, &s.CPUMean, &s.Mean, &s.StdDev, &s.Last, &s.Machines, &s.MachinesOut,
			&s.SelfSamples, &s.SelfMean, &s.SelfStdDev, &s.At, &s.Version,
			&s.Since, &s.P50, &s.P90, &s.P99, &s.Usage, &s.LeftOut, &s.Sigmas}
		if err := json.Unmarshal(row, &into); err != nil {
			return nil, fmt.Errorf("read specs: %w", err)
		}
		all = append(all, s)
	}
	return all, nil
}

// KeyOf returns the key of a stored version.
func KeyOf(v *store.Spec) spec.Key {
	return spec.Key{Job: sample.JobName(v.Job), Platform: sample.Platform(v.Platform), Signal: sample.SignalName(v.Signal), Variant: v.Variant}
}

// SpecOf converts a stored version to a spec.Spec.
func SpecOf(v *store.Spec) spec.Spec {
	out := spec.Spec{Key: KeyOf(v), Samples: v.Samples, Tasks: int(v.Tasks), CPUMean: v.CPUMean, Mean: v.Mean, StdDev: v.StdDev,
		SelfSamples: v.SelfSamples, SelfMean: v.SelfMean, SelfStdDev: v.SelfStdDev, Sigmas: v.Sigmas, Updated: sample.Millis(v.At)}
	if out.State.UnmarshalText([]byte(v.State)) != nil {
		out.State = spec.Insufficient
	}
	return out
}
