package observe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// simulated does pieces of work of one second. An observed piece takes longer by the
// share cost. noise and drift are added.
func simulated(seed uint64, cost, noise, drift float64, groups int) (Cost, error) {
	rng := rand.New(rand.NewPCG(seed, seed*7919+11))
	observed, n := false, 0
	return MeasureCost(context.Background(), groups, func() (time.Duration, error) {
		n++
		s := 1 + noise*rng.NormFloat64() + drift*float64(n)/float64(4*groups)
		if observed {
			s *= 1 + cost
		}
		return time.Duration(s * 1e9), nil
	}, func() (func() error, error) {
		observed = true
		return func() error { observed = false; return nil }, nil
	})
}

func TestCostIsFoundInSpiteOfDrift(t *testing.T) {
	c, err := simulated(1, 0.03, 0, 0.2, 10)
	if err != nil || math.Abs(c.Mean-0.03) > 1e-3 || c.OK() || c.Pairs != 20 {
		t.Errorf("%+v, %v; want 3 %%", c, err)
	}
}

func TestCostIntervalCovers(t *testing.T) {
	const runs = 2000
	hit := 0
	for seed := range uint64(runs) {
		c, err := simulated(seed, 0.005, 0.01, 0.02, 8)
		if err != nil {
			t.Fatal(err)
		}
		if c.Low <= 0.005 && 0.005 <= c.High {
			hit++
		}
	}
	// 95 % of 2000, within three standard deviations.
	if share := float64(hit) / runs; share < 0.935 || share > 0.965 {
		t.Errorf("the 95 %% interval covers the truth in %.1f %%", share*100)
	}
}

func TestCostInWords(t *testing.T) {
	for _, test := range []struct {
		cost Cost
		want string
		no   string
	}{
		{Cost{Pairs: 20, Mean: 0.001, Low: -0.001, High: 0.003, Noise: 0.002}, "+0.10 %", "noise floor"},
		{Cost{Pairs: 20, Mean: 0.001, Low: -0.03, High: 0.032, Noise: 0.03}, "below the noise floor of 3.20 %", "!"},
		{Cost{Pairs: 20, Mean: 0.04, Low: 0.03, High: 0.05}, "+4.00 %", "noise floor"},
	} {
		if got := test.cost.String(); !strings.Contains(got, test.want) || strings.Contains(got, test.no) {
			t.Errorf("%q", got)
		}
	}
}

func TestCostEndsWhatItBegan(t *testing.T) {
	open := 0
	broken := errors.New("broken")
	n := 0
	_, err := MeasureCost(context.Background(), 3, func() (time.Duration, error) {
		if n++; n == 6 {
			return 0, broken
		}
		return time.Second, nil
	}, func() (func() error, error) { open++; return func() error { open--; return nil }, nil })
	if !errors.Is(err, broken) || open != 0 {
		t.Errorf("%v, %d observers left", err, open)
	}
}

// BenchmarkObservation prints what default observation costs a CPU-bound loop, with
// observed and unobserved pieces in alternation:
//
//	go test ./internal/lab/observe -run none -bench Observation -benchtime 1x
func BenchmarkObservation(b *testing.B) {
	quelltest.Need(b, quelltest.Root, quelltest.Cgroup2)
	h, err := host.Open("/")
	if err != nil {
		b.Fatal(err)
	}
	tree, err := workload.OpenTree("quell-test-observe", workload.TreeOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := tree.Close(); err != nil {
			b.Error(err)
		}
	})
	for name, observe := range map[string]study.Observe{
		"default": {Sets: []string{"cpu", "psi", "schedstat"}},
		"events": {Sets: []string{"cpu", "psi", "schedstat", "net", "energy"},
			Events: []string{"cycles", "instructions", "l1d-misses", "l2-misses", "llc-misses", "dtlb-misses", "branch-misses", "sched:sched_switch"}},
	} {
		b.Run(name, func(b *testing.B) {
			sh := exec.Command("perl", "-e", `use Time::HiRes; $|=1; while (<STDIN>) { my $n=$_; my @a=times; my $x=1; for (my $i=0;$i<$n;$i++) { $x=($x*1103515245+12345)&0x7fffffff } my $c=Time::HiRes::clock(); print "$c\n" }`)
			in, err := sh.StdinPipe()
			if err != nil {
				b.Fatal(err)
			}
			out, err := sh.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := tree.Launch(name, sh, sample.SetOf(1)); err != nil {
				quelltest.Skip(b, "perl", err)
			}
			defer func() { in.Close(); _ = sh.Wait() }()
			lines := bufio.NewScanner(out)
			clock := func(n int) (time.Duration, error) {
				fmt.Fprintln(in, n)
				var s float64
				if !lines.Scan() {
					return 0, errors.New("the loop ended")
				}
				_, err := fmt.Sscan(lines.Text(), &s)
				return time.Duration(s * 1e9), err
			}
			last, err := clock(1e6)
			if err != nil {
				b.Fatal(err)
			}
			env := &boxed{pid: sh.Process.Pid}
			hier, _ := h.Layout().CPU()
			if env.dir, err = h.OpenCgroup(hier, tree.Path(name)); err != nil {
				b.Fatal(err)
			}
			defer env.dir.Close()
			o := Options{Host: h, Observe: observe, Run: study.Run{MaxForeignCPU: 1, MaxSteal: 1}}
			cost, err := MeasureCost(b.Context(), 4, func() (time.Duration, error) {
				now, err := clock(5e6)
				used := now - last
				last = now
				return used, err
			}, func() (func() error, error) { return o.observeEverySecond(env, sample.SetOf(1)) })
			if err != nil {
				b.Fatal(err)
			}
			b.Logf("%s: %s; noise floor %.2f %%", name, cost, cost.Noise*100)
			b.ReportMetric(cost.Mean*100, "%cost")
			b.ReportMetric(cost.High*100, "%cost-upper")
			b.ReportMetric(cost.Noise*100, "%noise")
			b.ReportMetric(0, "ns/op")
		})
	}
}
