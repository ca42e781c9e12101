package load

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// plant is a simulated role: it uses up to rate CPUs while it may run, less the rivals'
// share; resuming takes a varying time.
type plant struct {
	rate    func(t time.Duration) float64
	latency time.Duration // of resuming, at most
	random  *rand.Rand
	used    time.Duration
}

// play holds a share for a time and returns the CPU time used per second.
func play(l *Controller, p *plant, period, from, to time.Duration, share float64) (perSecond []float64, flagged time.Duration) {
	l.Hold(from, p.used, share)
	flagged = -1
	mark, second := p.used, from
	for now := from; now < to; now += period {
		d := l.Duty(now, p.used)
		if flagged < 0 && l.Unattainable(0.01) {
			flagged = now - from
		}
		run := time.Duration(d * float64(period))
		if late := time.Duration(p.random.Float64() * float64(p.latency)); d < 1 {
			run = max(0, run-late)
		}
		p.used += time.Duration(p.rate(now) * float64(run))
		if now-second >= time.Second {
			perSecond = append(perSecond, (p.used-mark).Seconds()/(now+period-second).Seconds())
			mark, second = p.used, now+period
		}
	}
	return perSecond, flagged
}

func constant(r float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return r }
}

// Over ten seconds the mean is within the bound of the package comment.
func TestLawHoldsTheMean(t *testing.T) {
	const period = 107 * time.Millisecond
	rivals := func(now time.Duration) float64 { // in every other second rivals use almost half of it
		if now/time.Second%2 == 0 {
			return 2
		}
		return 1.1
	}
	for name, rate := range map[string]func(time.Duration) float64{"owned": constant(2), "slower than its CPUs": constant(1.3), "rivals": rivals} {
		for share := 0.05; share < 0.5; share += 0.05 {
			p := &plant{rate: rate, latency: 4 * time.Millisecond, random: rand.New(rand.NewPCG(1, uint64(share*100)))}
			l := NewController(2, period)
			begin := p.used
			_, flagged := play(l, p, period, 0, 10*time.Second, share)
			got := (p.used - begin).Seconds() / 10 / 2
			bound := (period.Seconds()*math.Max(share, 1-share) + 0.004) / 10
			if math.Abs(got-share) > bound {
				t.Errorf("%s at %.2f: got %.4f, further away than %.4f", name, share, got, bound)
			}
			if flagged >= 0 {
				t.Errorf("%s at %.2f: called unattainable after %s", name, share, flagged)
			}
		}
	}
}

// An unattainable target is reported within five seconds. When it becomes attainable
// again it is not paid back for longer than the windup.
func TestLawSaysUnattainable(t *testing.T) {
	const period = 107 * time.Millisecond
	rate := 0.4
	p := &plant{rate: func(time.Duration) float64 { return rate }, random: rand.New(rand.NewPCG(1, 1))}
	l := NewController(1, period)
	if _, flagged := play(l, p, period, 0, 20*time.Second, 0.5); flagged < 0 || flagged > 5*time.Second {
		t.Errorf("flagged after %s", flagged)
	}
	if l.clamps == 0 {
		t.Error("no period was clamped")
	}
	rate = 1
	seconds := []float64{}
	mark := p.used
	for now := 20 * time.Second; now < 26*time.Second; now += period {
		p.used += time.Duration(l.Duty(now, p.used) * float64(period) * rate)
		if (now-20*time.Second)/time.Second > time.Duration(len(seconds)) {
			seconds = append(seconds, (p.used - mark).Seconds())
			mark = p.used
		}
	}
	if seconds[0] < 0.6 {
		t.Errorf("nothing was made up for: %v", seconds)
	}
	if last := seconds[len(seconds)-1]; math.Abs(last-0.5) > 0.06 {
		t.Errorf("still %v a second long after the clamp", seconds)
	}
}

// A new target discards the old one's error.
func TestHoldForgets(t *testing.T) {
	l := NewController(1, 100*time.Millisecond)
	l.Hold(0, 0, 1)
	l.Duty(10*time.Second, 0) // ten seconds behind
	l.Hold(10*time.Second, 0, 0.5)
	if d := l.Duty(10*time.Second, 0); d != 0.5 {
		t.Errorf("duty %g after a new target of 0.5", d)
	}
	l.Hold(10*time.Second, 0, 0)
	if d := l.Duty(11*time.Second, 0); d != 0 {
		t.Errorf("duty %g for a target of 0", d)
	}
}
