package evaluation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/stat"
)

// CostKey is what a distribution of costs is of: a job on machines of one type.
type CostKey struct {
	Job      sample.JobName    `json:"job"`
	Platform sample.Platform   `json:"platform"`
	Signal   sample.SignalName `json:"signal"`
	Variant  string            `json:"variant"`
}

func (k CostKey) String() string {
	return fmt.Sprintf("%s on %s, %s", k.Job.String(), string(k.Platform), string(k.Signal))
}

// Course is a job's mean cost hour by hour (figure 5).
type Course struct {
	Of    CostKey `json:"of"`
	Hours []Hour  `json:"hours"`
	// Variation is the standard deviation of the hours' means ÷ their mean.
	Variation incident.Value `json:"coefficient_of_variation"`
}

// Hour is the mean cost of the samples of an hour.
type Hour struct {
	From    sample.Millis `json:"from"`
	Samples int64         `json:"samples"`
	Mean    float64       `json:"mean"`
}

// JobCost is the distribution of a job's costs (figure 7).
type JobCost struct {
	CostKey
	Samples int64          `json:"samples"`
	Mean    float64        `json:"mean"`
	StdDev  float64        `json:"stddev"`
	Bins    []Bin          `json:"bins"`
	Fits    []Distribution `json:"fits"` // the best first
	// Thresholds were set by the first half of the time, and judged by the second.
	Thresholds []Threshold `json:"thresholds"`
}

// Bin is the share of the samples with a cost from From up to the next bin.
type Bin struct {
	From  float64 `json:"from"`
	Share float64 `json:"share"`
}

// Distribution is one that was fitted to the costs.
type Distribution struct {
	Name string         `json:"name"`
	AIC  incident.Value `json:"aic"` // the smallest fits best
	GEV  *stat.GEV      `json:"gev,omitempty"`
	law  stat.Distribution
}

// Density is the fitted density at a cost.
func (d *Distribution) Density(cost float64) float64 { return math.Exp(d.law.LogProb(cost)) }

// Threshold is a cost above which a sample is an outlier.
type Threshold struct {
	Name string  `json:"name"`
	Cost float64 `json:"cost"`
	// Above is the share of the second half's samples above it. Nominal is the share that was
	// to be expected.
	Above   float64 `json:"above"`
	Nominal float64 `json:"nominal"`
}

// OutlierShare is the share of samples that a fitted threshold lets be outliers: that of the
// paper's fit above μ + 2σ, to one digit (figure 7; its text says about 5 %).
const OutlierShare = 0.04

const (
	// jobsSQL lists the jobs with most samples, those that are latency-sensitive first.
	jobsSQL = `SELECT job, platform, signal, variant FROM samples WHERE cost > 0 AND ts > {from} AND ts <= {to}
GROUP BY ALL ORDER BY max(class = 'latency-sensitive') DESC, count(*) DESC, job, platform, signal, variant LIMIT %d`
	courseSQL = `SELECT epoch_ms(time_bucket(INTERVAL 1 HOUR, ts)), count(*), sum(cost) FROM samples
WHERE ts > {from} AND ts <= {to} AND (flags & 17) = 0 AND %s GROUP BY 1`
	binsSQL = `SELECT n, CAST(floor(ln(cost) * %d) AS INTEGER), count(*) FROM samples s
JOIN (VALUES %s) AS k(n, job, platform, signal, variant, least) ON k.job = s.job AND k.platform = s.platform AND k.signal = s.signal AND k.variant = s.variant
WHERE ts > {from} AND ts <= {to} AND (flags & 17) = 0 AND cost > 0 AND cpu >= least AND s.job IN (%s) GROUP BY 1, 2`

	// mostJobs is the number of jobs whose distribution is shown.
	mostJobs = 8
	// binsPerUnit is the number of bins by which a cost grows by a factor of e.
	binsPerUnit = 200
)

// condition selects the samples of a key that detection would judge.
func (k CostKey) condition() string {
	return fmt.Sprintf("job = %s AND platform = %s AND signal = %s AND variant = %s AND cost > 0 AND cpu >= %g",
		quote(string(k.Job)), quote(string(k.Platform)), quote(string(k.Signal)), quote(k.Variant), k.leastCPU())
}

// leastCPU is the CPU usage from which on detection judges a sample, CPU-s/s.
func (k CostKey) leastCPU() float64 {
	if s, ok := sample.LookupSignal(k.Signal); ok && s.Domain.OfCPUs() && s.LeastCPU < math.MaxFloat64 {
		return max(s.LeastCPU, 0)
	}
	return 0
}

// readCosts reads figures 5 and 7.
func (e *Evaluation) readCosts(t *tables) error {
	c := e.cluster
	if c.At == 0 {
		return nil
	}
	var keys []CostKey
	err := t.once(fmt.Sprintf(jobsSQL, mostJobs), max(t.from, c.At.Add(-day)), c.At, func(row []json.RawMessage) error {
		var k CostKey
		err := scan(row, &k.Job, &k.Platform, &k.Signal, &k.Variant)
		keys = append(keys, k)
		return err
	})
	if err != nil || len(keys) == 0 {
		return err
	}
	if err := e.readCourse(t, keys[0]); err != nil {
		return err
	}
	middle := t.from + (t.to-t.from)/2
	all := make([][2]histogram, len(keys))
	var values, jobs []string // the filter by jobs keeps the join small
	for i, k := range keys {
		all[i] = [2]histogram{{}, {}}
		jobs = append(jobs, quote(string(k.Job)))
		values = append(values, fmt.Sprintf("(%d, %s, %s, %s, %s, %g)", i, quote(string(k.Job)), quote(string(k.Platform)), quote(string(k.Signal)), quote(k.Variant), k.leastCPU()))
	}
	sql := fmt.Sprintf(binsSQL, binsPerUnit, strings.Join(values, ", "), strings.Join(jobs, ", "))
	for half, part := range []tables{{t.ctx, t.ask, t.from, middle, nil}, {t.ctx, t.ask, middle, t.to, nil}} {
		err := part.pages(week, sql, nil, func(row []json.RawMessage) error {
			var i, bin int
			var n float64
			if err := scan(row, &i, &bin, &n); err != nil {
				return err
			}
			if i < 0 || i >= len(keys) {
				return fmt.Errorf("job %d of %d", i, len(keys))
			}
			all[i][half][bin] += n
			return nil
		})
		if err != nil {
			return err
		}
	}
	for i, k := range keys {
		c.Costs = append(c.Costs, costOf(k, all[i][0], all[i][1]))
	}
	return nil
}

func (e *Evaluation) readCourse(t *tables, k CostKey) error {
	hours := map[sample.Millis]Hour{}
	err := t.pages(week, fmt.Sprintf(courseSQL, k.condition()), nil, func(row []json.RawMessage) error {
		var h Hour
		var sum float64
		if err := scan(row, &h.From, &h.Samples, &sum); err != nil {
			return err
		}
		had := hours[h.From] // its other part, if a page ended within it
		sum += had.Mean * float64(had.Samples)
		h.Samples += had.Samples
		h.Mean = sum / float64(h.Samples)
		hours[h.From] = h
		return nil
	})
	c := &Course{Of: k}
	var means []float64
	for _, h := range hours {
		c.Hours = append(c.Hours, h)
	}
	slices.SortFunc(c.Hours, func(a, b Hour) int { return cmp.Compare(a.From, b.From) })
	for _, h := range c.Hours {
		means = append(means, h.Mean)
	}
	mean, dev := moments(means)
	c.Variation = incident.Value(dev / mean)
	e.cluster.Course = c
	return err
}

// histogram counts costs by the bin of their logarithm.
type histogram map[int]float64

// sorted returns the bins in order, and the sum of the counts.
func (h histogram) sorted() (bins []int, sum float64) {
	for b, n := range h {
		bins = append(bins, b)
		sum += n
	}
	slices.Sort(bins)
	return bins, sum
}

func lower(bin int) float64  { return math.Exp(float64(bin) / binsPerUnit) }
func middle(bin int) float64 { return math.Exp((float64(bin) + 0.5) / binsPerUnit) }

// above is the share of the values above a cost, to the bin.
func (h histogram) above(cost float64) float64 {
	bins, sum := h.sorted()
	over := 0.0
	for _, b := range bins {
		if middle(b) > cost {
			over += h[b]
		}
	}
	return over / sum
}

// values returns n values with the distribution of the bins: its quantiles in equal steps.
func (h histogram) values(n int) (all []float64) {
	bins, sum := h.sorted()
	at := 0.0
	for _, b := range bins {
		first := at
		at += h[b]
		for len(all) < n {
			want := (float64(len(all)) + 0.5) / float64(n) * sum
			if want > at {
				break
			}
			all = append(all, lower(b)*math.Exp((want-first)/h[b]/binsPerUnit))
		}
	}
	return all
}

func (h histogram) moments() (mean, dev float64) {
	bins, sum := h.sorted()
	for _, b := range bins {
		mean += h[b] * middle(b) / sum
	}
	for _, b := range bins {
		d := middle(b) - mean
		dev += h[b] * d * d / sum
	}
	return mean, math.Sqrt(dev)
}

// fitted is the number of values to which distributions are fitted.
const fitted = 4000

// costOf describes a job's costs, of which one half sets thresholds and the other judges them.
func costOf(k CostKey, first, second histogram) JobCost {
	whole := histogram{}
	for _, h := range []histogram{first, second} {
		for b, n := range h {
			whole[b] += n
		}
	}
	bins, sum := whole.sorted()
	c := JobCost{CostKey: k, Samples: int64(sum)}
	if sum == 0 {
		return c
	}
	c.Mean, c.StdDev = whole.moments()
	for _, b := range bins {
		c.Bins = append(c.Bins, Bin{lower(b), whole[b] / sum})
	}
	for _, f := range stat.Fits(whole.values(fitted)) {
		d := Distribution{Name: f.Name, AIC: incident.Value(f.AIC), law: f.Distribution}
		if g, ok := f.Distribution.(stat.GEV); ok {
			d.GEV = &g
		}
		c.Fits = append(c.Fits, d)
	}
	if len(first) == 0 || len(second) == 0 {
		return c
	}
	add := func(name string, cost, nominal float64) {
		c.Thresholds = append(c.Thresholds, Threshold{name, cost, second.above(cost), nominal})
	}
	mean, dev := first.moments()
	add("mean + 2σ", mean+2*dev, first.above(mean+2*dev))
	values := first.values(fitted)
	add("quantile", values[int((1-OutlierShare)*fitted)], OutlierShare)
	if g, ok := stat.FitGEV(values); ok {
		add("GEV", g.Quantile(1-OutlierShare), OutlierShare)
	}
	return c
}

func moments(all []float64) (mean, dev float64) {
	for _, x := range all {
		mean += x / float64(len(all))
	}
	for _, x := range all {
		dev += (x - mean) * (x - mean) / float64(len(all))
	}
	return mean, math.Sqrt(dev)
}
