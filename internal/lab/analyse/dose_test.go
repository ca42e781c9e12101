package analyse

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// dosed is a run of a test part with n neighbours, each part with the given number of
// threads, whose iterations take the given seconds.
func dosed(ve, state string, n, threads, rep int, seconds ...float64) result.Run {
	node := study.Part{Role: "test", Measure: true, Environment: study.Environment{Name: ve, Driver: study.Cgroup, CPUs: threads},
		Workload: study.Workload{Name: "burn", Metric: study.Metric{Better: "lower", Unit: "s"}}}
	c := study.Cell{Kind: study.Main, Parts: []study.Part{node},
		Levels: []study.Level{{Factor: "ve", Value: ve}, {Factor: "neighbours", Value: strconv.Itoa(n)}, {Factor: "state", Value: state}}}
	for k := range n {
		nb := node
		nb.Role, nb.Index, nb.Several, nb.Measure, nb.Idle = "nb", k, n > 1, false, state == "idle"
		c.Parts = append(c.Parts, nb)
	}
	r := result.Run{Cell: c, CellKey: c.Key(), N: rep, Verdict: result.Valid, Window: result.Window{To: time.Hour}, Parts: []result.Part{{Name: "test", Role: "test"}}}
	at := time.Duration(0)
	for _, s := range seconds {
		to := at + time.Duration(s*float64(time.Second))
		r.Parts[0].Iterations = append(r.Parts[0].Iterations, result.Iteration{From: at, To: to, Units: 1})
		at = to
	}
	return r
}

// The paper's figures for its metal machines are reproduced: the time at all threads,
// up to half of them, and at the first one beyond.
func TestDoseOfThePaper(t *testing.T) {
	for _, row := range []struct {
		family                       string
		vcpus                        int
		full, first, knee, overMetal float64 // percent
	}{ // from its tables and text in 5.2.1 to 5.2.3
		{"m5", 96, 53, 13.2, 25.22, 36.6},
		{"m6i", 128, 31.85, 0.35, 20.9, 26.7},
		{"m6a", 192, 23.5, 3.9, 5.2, 9.3},
	} {
		n, full, first, knee, gap := row.vcpus, row.full, row.first, row.knee, row.overMetal
		half := 1 + first/100
		type point struct {
			threads int
			time    float64
		}
		beyond := point{n/2 + 1, half * (1 + knee/100)}
		points := []point{{1, 1}, {n / 4, 1 + first/200}, {n / 2, half}, beyond}
		for k := 1; k <= 8; k++ { // in small steps
			points = append(points, point{beyond.threads + (n-beyond.threads)*k/8, beyond.time + (1+full/100-beyond.time)*float64(k)/8})
		}
		var runs []result.Run
		for rep, e := range []float64{-1e-4, 0, 1e-4} {
			for _, p := range points {
				runs = append(runs, dosed("metal", "busy", p.threads-1, 1, rep, p.time+e))
			}
			runs = append(runs, dosed("vm", "busy", 0, 1, rep, 1+gap/100+e))
		}
		ds, cs := DoseResponse(runs, DoseOptions{Count: "neighbours", State: "state", VE: "ve", Base: "metal"})
		if len(ds) != 2 || len(cs) != 1 {
			t.Fatalf("%s: %d doses, %d contrasts", row.family, len(ds), len(cs))
		}
		d := ds[0]
		if !near(d.Full.Value, full, 1e-6) || !near(d.First.Value, first, 1e-6) || d.Knee == nil || !near(d.Knee.Step.Value, knee, 1e-6) {
			t.Fatalf("%s: full %v, first %v, knee %+v", row.family, d.Full, d.First, d.Knee)
		}
		if least, most := d.Knee.Cores(); least != n/2 || most != n/2 {
			t.Errorf("%s: %d to %d cores, want %d", row.family, least, most, n/2)
		}
		if want := 100 * ((1+full/100)/(half*(1+knee/100)) - 1); !near(d.Second.Value, want, 1e-6) {
			t.Errorf("%s: second half %v, want %g", row.family, d.Second, want)
		}
		if c := cs[0]; c.Of != "vm" || c.Over != "metal" || len(c.Points) != 1 || c.Points[0].At != 1 || !near(c.Points[0].Longer.Value, gap, 1e-6) {
			t.Errorf("%s: against metal %+v", row.family, c)
		}
	}
}

func TestDoseContrasts(t *testing.T) {
	var runs []result.Run
	for rep, e := range []float64{0.99, 1, 1.01} {
		for n := range 4 {
			// The values are times, for which a larger one is worse.
			runs = append(runs, dosed("vm", "busy", n, 2, rep, e*(1+0.1*float64(n))))
			if n > 0 { // without neighbours both are the same
				runs = append(runs, dosed("vm", "idle", n, 2, rep, e*1.02))
			}
			runs = append(runs, dosed("metal", "busy", n, 2, rep, e*0.8*(1+0.1*float64(n))))
		}
	}
	ds, cs := DoseResponse(runs, DoseOptions{Count: "neighbours", State: "state", VE: "ve", Base: "metal"})
	type line struct {
		Of, Over, By string
		At           int
		Longer       int // tenths of a percent
	}
	var got []line
	for _, c := range cs {
		for _, p := range c.Points {
			if !(p.Longer.Low < p.Longer.Value && p.Longer.Value < p.Longer.High) {
				t.Errorf("%s over %s: %+v", c.Of, c.Over, p)
			}
			got = append(got, line{c.Of, c.Over, c.By, p.At, int(10*p.Longer.Value + 0.5)})
		}
	}
	want := []line{{"vm", "metal", "threads", 2, 250}, {"vm", "metal", "threads", 4, 250}, {"vm", "metal", "threads", 6, 250}, {"vm", "metal", "threads", 8, 250},
		{"busy", "idle", "neighbours", 0, 0}, {"busy", "idle", "neighbours", 1, 78}, {"busy", "idle", "neighbours", 2, 176}, {"busy", "idle", "neighbours", 3, 275}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, d := range ds {
		if d.State != "idle" {
			continue
		}
		if len(d.Points) != 4 || d.Points[3].Threads != 2 || d.Knee != nil || finite(d.First.Value) {
			t.Errorf("idle neighbours: %+v", d)
		}
	}
	// An emulated CPU is not compared with a real one.
	for i := range runs {
		if runs[i].Cell.Level("ve") == "vm" {
			runs[i].Stamp = []string{Emulated}
			runs[i].Cell.Parts[0].Environment.Driver = study.QEMU
		}
	}
	if _, cs := DoseResponse(runs, DoseOptions{Count: "neighbours", State: "state", VE: "ve", Base: "metal"}); len(cs) != 1 || cs[0].Over != "idle" {
		t.Errorf("with emulated guests: %+v", cs)
	}
}
