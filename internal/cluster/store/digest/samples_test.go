package digest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestZerosAreNoDamage: a machine whose tasks never waited for themselves has a mean of 0. A sum of
// differences from another machine's waits may give a little less, which would make the digest a
// damaged one each time that it is computed.
func TestZerosAreNoDamage(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(21, 22))
	var all []sample.Sample
	for i := range 300 {
		for m, wait := range []float64{0.1 + 0.2*r.Float64(), 0, 0.7} {
			s := sample.Sample{TS: sample.At(start) + sample.Millis(i*10_000), Machine: fmt.Sprint("m", m), Job: "j", Task: "/a", Platform: "p", Signal: sample.RunQ, CPU: 1, Cost: float32(wait), Coverage: 1}
			s.Extras.Set(sample.WaitOther, 10*float64(s.Cost))
			s.Extras.Set(sample.WaitSelf, 10*wait)
			all = append(all, s)
		}
	}
	b.add(all)
	b.check("zeros", all)
}

// Samples of one task on several pages, with nulls on some of them: a page has 65,536 costs.
func TestLongStretches(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(3, 4))
	all := make([]sample.Sample, 100_000)
	for i := range all {
		all[i] = sample.Sample{TS: sample.At(start) + sample.Millis(i*10), Machine: "m", Job: "j", Task: sample.TaskName(fmt.Sprint("/", i*7/len(all))), Platform: "p", Signal: sample.CPT,
			CPU: 1, Cost: 1e-3 * (1 + r.Float32()), Coverage: 1}
		if i > 70_000 && i%3 == 0 {
			all[i].Cost = float32(math.NaN())
		}
	}
	b.add(all)
	b.check("long stretches", all)
	got, _ := b.learn()
	if len(got) != 1 || got[0].Tasks != 7 {
		t.Errorf("got %+v, want 7 tasks", got)
	}
}

// TestAttackUsageThatIsNoNumber: an agent that reports an infinite usage spoils no digest. Each would
// be found damaged and be computed again, to the same end: no job of the cluster would get a spec.
func TestAttackUsageThatIsNoNumber(t *testing.T) {
	b := newBench(t)
	all := random(rand.New(rand.NewPCG(5, 6)), 3000)
	for i := range all {
		if i%100 == 0 {
			all[i].Signal, all[i].Variant, all[i].CPU, all[i].Cost, all[i].Flags = sample.IO, "", float32(math.Inf(1-i%200)), 1, 0
		}
	}
	all[50].Signal, all[50].Variant, all[50].CPU, all[50].Cost, all[50].Flags = sample.CPI, "", float32(math.Inf(1)), 1, 0
	b.add(all)
	b.check("infinite usage", all)
	if got, _ := b.learn(); len(got) == 0 {
		t.Error("no job has a spec")
	}
}

// TestAttackWindowsOfOneTask: a machine reports 10,000 incidents of one task, and many samples of it. Each was compared with
// all of them, so that no computation of anyone's specs came to its end.
func TestAttackWindowsOfOneTask(t *testing.T) {
	b := newBench(t)
	all := make([]sample.Sample, 100_000)
	for i := range all {
		all[i] = sample.Sample{TS: sample.At(start) + sample.Millis(i*30), Machine: "liar", Job: "j", Task: "/a", Platform: "p", Signal: sample.CPI, CPU: 1, Cost: 1, Coverage: 1}
	}
	b.add(all)
	windows := make([]store.Window, 10_000)
	for i := range windows {
		from := sample.At(start) + sample.Millis(i*300+1) // of ten samples five
		windows[i] = store.Window{Machine: "liar", Task: "/a", Signal: sample.CPI, From: from, To: from + 150}
	}
	took := func(windows ...store.Window) (took time.Duration, samples int64) {
		begun := time.Now()
		got, _ := b.learn(windows...)
		if len(got) != 1 {
			t.Fatalf("%d specs", len(got))
		}
		return time.Since(begun), got[0].Samples
	}
	var n, left int64
	other := windows[0]
	other.Task = "/b"
	anew := func() store.Window { // a digest is made for other windows only
		other.To++
		return other
	}
	without := quelltest.Fastest(func() (d time.Duration) { d, n = took(anew()); return d })
	with := quelltest.Fastest(func() (d time.Duration) { d, left = took(append(windows, anew())...); return d })
	if n != 100_000 || left != 50_000 {
		t.Fatalf("%d samples teach, with incidents %d", n, left)
	}
	if with > 10*without+300*time.Millisecond {
		t.Errorf("it took %s, without incidents %s", with, without)
	}
}

// TestAttackSamplesOfOneTask: a machine reports more samples of a task in an hour than 32 bits count, equal ones of a byte
// each. The digest is not one that is taken for damaged, at each computation of all jobs' specs.
func TestAttackSamplesOfOneTask(t *testing.T) {
	for n, want := range map[int64]int64{1: 1, math.MaxInt32: math.MaxInt32, math.MaxInt32 + 1: math.MaxInt32, 1 << 40: math.MaxInt32} {
		of := stat.Moments{N: n, W: float64(n), W2: float64(n), Mean: 1}
		h := spec.Hour{Start: 3_600_000, Newest: 3_600_000, Machines: []spec.MachineHour{{Machine: 1, CPU: 1, Cost: of, Tasks: []spec.TaskSamples{{Task: 7, N: n}}}}}
		h.Usage[0] = of
		var r row
		r.set(spec.Key{Job: "j"}, &h)
		if got, err := r.hour(); err != nil || got.Machines[0].Tasks[0].N != want || got.Machines[0].Cost.N != n {
			t.Errorf("%d samples: %+v, %v", n, got, err)
		}
	}
}

// TestAttackAVariantForEachSample: a machine that reports another variant with each sample of a job takes
// no memory for each, and does not keep others from teaching what the job costs.
func TestAttackAVariantForEachSample(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(7, 8))
	var all []sample.Sample
	honest := func(i int, machine string) sample.Sample {
		return sample.Sample{TS: sample.At(start) + sample.Millis(i*10_000), Machine: machine, Job: "j", Task: "/b", Platform: "p", Signal: sample.CPI, Variant: "v", CPU: 1, Cost: 1 + r.Float32(), Coverage: 1}
	}
	for i := range 100 {
		for m := range 3 {
			all = append(all, honest(i, fmt.Sprint("m", m)))
		}
	}
	want := naive(all, nil, b.params, b.now)
	for i := range 3000 {
		s := honest(i%100, "liar")
		s.Task, s.Variant = "/a", fmt.Sprint("made-up-", i)
		all = append(all, s)
	}
	b.add(all)
	got, _ := b.learn()
	if len(got) != maxMade+1 {
		t.Errorf("%d keys, want those of %d made-up variants and the true one", len(got), maxMade)
	}
	for i := range want {
		if n := slices.IndexFunc(got, func(c spec.Computed) bool { return c.Key == want[i].Key }); n < 0 || gocmp.Diff(want[i], got[n], about) != "" {
			t.Errorf("of %v: %+v", want[i].Key, got)
		}
	}
}

// TestManyDigestsFitInMemory: of each of thousands of digests there is only so much in memory, whatever its size.
func TestManyDigestsFitInMemory(t *testing.T) {
	const keys, machines = 100, 500
	h := spec.Hour{Machines: make([]spec.MachineHour, machines)}
	for i := range h.Machines {
		h.Machines[i] = spec.MachineHour{Machine: uint64(i), CPU: 1, Cost: stat.Moments{N: 1, W: 1, W2: 1, Mean: float64(i)}, Tasks: []spec.TaskSamples{{Task: uint64(i), N: 1}}}
	}
	h.Usage[0] = stat.Moments{N: machines, W: machines, W2: machines, Mean: 1}
	h.Sketch.AddBin(1, machines)
	path := filepath.Join(t.TempDir(), "d")
	if err := write(path, func(emit func(spec.Key, *spec.Hour) error) (err error) {
		for i := range keys {
			err = errors.Join(err, emit(spec.Key{Job: sample.JobName(fmt.Sprintf("job-%03d", i))}, &h))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if n := held(5000); n != 1 {
		t.Errorf("%d rows of each of 5,000", n)
	}
	d, err := open(path, held(5000))
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	n := 0
	for ; d.row() != nil; n++ {
		if got, err := d.row().hour(); err != nil || len(got.Machines) != machines || string(d.row().key().Job) != fmt.Sprintf("job-%03d", n) {
			t.Fatalf("row %d: %d machines of %s, %v", n, len(got.Machines), d.row().Job, err)
		}
		if err := d.next(); err != nil {
			t.Fatal(err)
		}
	}
	info, err := d.file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	p, err := parquet.OpenFile(d.file, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	pages := 0
	for _, of := range p.OffsetIndexes() {
		pages = max(pages, len(of.PageLocations))
	}
	if least := keys * machines * 8 / (2 * pageBytes); n != keys || pages < least {
		t.Errorf("%d rows, and %d pages of the largest column, want %d and at least %d", n, pages, keys, least)
	}
}
