package observe

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Cost is the cost of observation for a workload: how much more CPU time a unit of its
// work takes, as a share. It comes from pairs of equal pieces of work, adjacent in time,
// one observed and one not.
type Cost struct {
	Pairs int `json:"pairs"`
	// Mean is the estimate, Low and High its 95 % confidence interval (t over pairs, of
	// the logarithms of ratios).
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Noise is the half width of the same interval for pairs in which both pieces are not
	// observed: a smaller cost cannot be distinguished from zero here.
	Noise float64 `json:"noise"`
	// Own is how much more CPU time this process used while it observed than while it did
	// not, in CPUs. It reads the workload's lines in both cases.
	Own float64 `json:"own"`
}

// mostCost is the largest accepted cost of the default observation.
const mostCost = 0.01

// OK reports whether the cost is shown to be at most 1 %.
func (c Cost) OK() bool { return c.High <= mostCost }

// String returns the text for a report.
func (c Cost) String() string {
	own := fmt.Sprintf("; the observer itself used %.2f %% of a CPU", c.Own*100)
	interval := fmt.Sprintf("%+.2f %% CPU time per unit of work (95 %%: %+.2f to %+.2f %%, %d pairs)", c.Mean*100, c.Low*100, c.High*100, c.Pairs)
	if !c.OK() && c.Low <= 0 {
		return fmt.Sprintf("below the noise floor of %.2f %%: %s%s", max(c.Noise, c.High)*100, interval, own)
	}
	return interval + own
}

// MeasureCost does pieces of work in groups of four: not observed, observed, observed,
// not observed. Every second group has the reverse order, so that a drift favours
// neither. work does one piece and returns its CPU time. watch begins to observe and
// returns the function that ends it. The noise comes from the pieces that are not
// observed.
func MeasureCost(ctx context.Context, groups int, work func() (time.Duration, error), watch func() (func() error, error)) (Cost, error) {
	if groups < 2 {
		return Cost{}, errors.New("measure the cost of observation: want at least 2 groups")
	}
	var own, span [2]time.Duration // by whether observed
	piece := func(observed bool) (float64, error) {
		end, of := func() error { return nil }, 0
		if observed {
			var err error
			if end, err = watch(); err != nil {
				return 0, err
			}
			of = 1
		}
		from, before := time.Now(), ownTime()
		used, err := work()
		own[of], span[of] = own[of]+ownTime()-before, span[of]+time.Since(from)
		if err = errors.Join(err, end(), ctx.Err()); err == nil && used <= 0 {
			err = errors.New("a unit of work took no CPU time")
		}
		return math.Log(used.Seconds()), err
	}
	var with, without []float64 // logarithms of ratios
	for g := range groups {
		var sum, plain [2]float64 // by whether observed; plain in order
		n := 0
		for i := range 4 {
			observed := (i == 1 || i == 2) != (g%2 == 1)
			took, err := piece(observed)
			if err != nil {
				return Cost{}, fmt.Errorf("measure the cost of observation: %w", err)
			}
			if observed {
				sum[1] += took
				continue
			}
			sum[0] += took
			plain[n] = took
			n++
		}
		with = append(with, (sum[1]-sum[0])/2)
		without = append(without, plain[1]-plain[0])
	}
	mean, half := interval(with)
	_, noise := interval(without)
	return Cost{Pairs: 2 * groups, Mean: math.Expm1(mean), Low: math.Expm1(mean - half), High: math.Expm1(mean + half),
		// A difference of two means of two has half the variance of a difference of
		// single pieces.
		Noise: math.Expm1(noise / math.Sqrt2), Own: own[1].Seconds()/span[1].Seconds() - own[0].Seconds()/span[0].Seconds()}, nil
}

// interval returns the mean and the half width of its 95 % confidence interval.
func interval(x []float64) (mean, half float64) {
	n := float64(len(x))
	mean, deviation := stat.MeanStdDev(x, nil)
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(0.975)
	return mean, t * deviation / math.Sqrt(n)
}
