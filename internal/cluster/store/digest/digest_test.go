package digest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/core/stat"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

var start = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// random makes samples over some hours, a good part of which must not be used for specs.
func random(r *rand.Rand, n int) []sample.Sample {
	all := make([]sample.Sample, n)
	for i := range all {
		signal := sample.Signals()[r.IntN(len(sample.Signals()))].Name
		variant := ""
		if signal == sample.CPI {
			variant = []string{"core-cycles", "ref-cycles"}[r.IntN(2)]
		}
		job := r.IntN(6)
		s := sample.Sample{TS: sample.At(start.Add(time.Duration(r.IntN(3*3600*1000)) * time.Millisecond)), Machine: fmt.Sprint("m", r.IntN(5)),
			Job: sample.JobName(fmt.Sprint("job-", job)), Task: sample.TaskName(fmt.Sprintf("/j%d/%d", job, r.IntN(8))), Platform: sample.Platform(fmt.Sprint("p", r.IntN(2))),
			Signal: signal, Variant: variant, CPU: 20 * r.Float32() * r.Float32(), Cost: 1 + 0.1*float32(r.NormFloat64()), Coverage: 1}
		switch r.IntN(12) {
		case 0:
			s.Cost = float32(math.NaN())
		case 1:
			s.Flags = sample.Capped
		case 2:
			s.Flags = sample.Split | sample.Throttled
		case 3:
			s.Flags = sample.Throttled // is used for specs
		case 4:
			s.Cost = 1e6
		case 5:
			s.Cost = 0
		}
		if signal != sample.CPT { // of another signal they are no part of its cost
			s.Extras.Set(sample.WaitOther, float64(s.Cost)*float64(s.CPU)*10)
			s.Extras.Set(sample.WaitSelf, max(0, 3*r.Float64()-1))
		}
		if i%20 < 3 {
			s.Extras = sample.Extras{}
		}
		all[i] = s
	}
	return all
}

// naive computes specs sample by sample.
func naive(all []sample.Sample, windows []store.Window, p spec.Params, now sample.Millis) (out []spec.Computed) {
	type place struct {
		spec.Key
		hour sample.Millis
	}
	by := map[place]*spec.Hour{}
	for i := range all {
		s := &all[i]
		rule, ok := spec.FilterOf(s.Signal)
		if !ok || !rule.Accepts(s.Flags, s.CPU, s.Cost) || slices.ContainsFunc(windows, func(w store.Window) bool {
			if w.Task == "" {
				return (&spec.Revocation{Machine: w.Machine, Job: w.Job, From: w.From, To: w.To}).Covers(s.Machine, s.Job, s.TS)
			}
			return w.Machine == s.Machine && w.Task == s.Task && w.Signal == s.Signal && s.TS >= w.From && s.TS <= w.To
		}) {
			continue
		}
		k := place{spec.Key{Job: s.Job, Platform: s.Platform, Signal: s.Signal, Variant: s.Variant}, spec.HourOf(s.TS)}
		h := by[k]
		if h == nil {
			h = &spec.Hour{Start: k.hour}
			by[k] = h
		}
		var self stat.Moments
		waits := [2]float64{math.NaN(), math.NaN()}
		for i, e := range []sample.Extra{sample.WaitOther, sample.WaitSelf} {
			if v, ok := s.Extras.Get(e); ok {
				waits[i] = v
			}
		}
		if x := rule.Self(s.Cost, waits[0], waits[1]); x >= 0 {
			self.Add(x, 1)
		}
		h.Machines = append(h.Machines, spec.MachineHour{Machine: spec.HashMachine(s.Machine), CPU: float64(s.CPU), Self: self,
			Cost:  stat.Moments{N: 1, W: 1, W2: 1, Mean: float64(s.Cost)},
			Tasks: []spec.TaskSamples{{Task: spec.HashTask(s.Machine, string(s.Task)), N: 1}}})
		h.Usage[spec.UsageBin(s.CPU)].Add(float64(s.Cost), 1)
		h.Sketch.Add(s.Cost, 1)
		h.Newest = max(h.Newest, s.TS)
	}
	hours := map[spec.Key][]spec.Hour{}
	for k, h := range by {
		hours[k.Key] = append(hours[k.Key], *h)
	}
	for k, of := range hours {
		out = append(out, spec.Learn(p, k, of, now))
	}
	slices.SortFunc(out, func(a, b spec.Computed) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Platform, b.Platform), cmp.Compare(a.Signal, b.Signal), cmp.Compare(a.Variant, b.Variant))
	})
	return out
}

var about = gocmp.Options{cmpopts.EquateApprox(1e-10, 1e-12), cmpopts.IgnoreUnexported(spec.Computed{}), cmpopts.EquateNaNs()}

type bench struct {
	*testing.T
	store   *store.Store
	learner Learner
	params  spec.Params
	now     sample.Millis
	batches uint64
}

func newBench(t *testing.T) *bench {
	t.Helper()
	now := start.Add(4 * time.Hour)
	s, err := store.Open(t.TempDir(), store.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	p := spec.Paper()
	p.MinSamples, p.MinMachines = 20, 3
	return &bench{T: t, store: s, learner: Learner{Dir: filepath.Join(t.TempDir(), "digests"), Threads: 2}, params: p, now: sample.At(now)}
}

func (b *bench) add(all []sample.Sample) {
	b.Helper()
	b.batches++
	b.store.Add(&store.Batch{Source: store.Source{Stream: "samples", Machine: "m"}, N: b.batches, Samples: all})
	if err := b.store.Flush(); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) learn(windows ...store.Window) ([]spec.Computed, Stats) {
	b.Helper()
	sn := b.store.Snapshot(0, 0)
	defer sn.Close()
	got, err := b.learner.Learn(b.Context(), sn, 0, windows, b.params, b.now)
	if err != nil {
		b.Fatal(err)
	}
	return got, b.learner.Stats
}

func (b *bench) check(what string, all []sample.Sample, windows ...store.Window) Stats {
	b.Helper()
	return b.agrees(what, naive(all, windows, b.params, b.now), windows...)
}

// agrees is check with a result of naive computed before.
func (b *bench) agrees(what string, want []spec.Computed, windows ...store.Window) Stats {
	b.Helper()
	got, st := b.learn(windows...)
	if diff := gocmp.Diff(want, got, about); diff != "" {
		b.Errorf("%s: %s", what, diff)
	}
	return st
}

// files returns the number of digests.
func (b *bench) files() (n int) {
	b.Helper()
	err := filepath.WalkDir(b.learner.Dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// TestLearnsWhatTheSamplesSay: specs from digests equal those computed sample by sample,
// whatever the segments, and no segment is read twice.
func TestLearnsWhatTheSamplesSay(t *testing.T) {
	b := newBench(t)
	if got, st := b.learn(); len(got) != 0 || st != (Stats{}) {
		t.Errorf("of an empty store: %v, %+v", got, st)
	}
	r := rand.New(rand.NewPCG(1, 2))
	var all []sample.Sample
	for range 5 {
		some := random(r, 6_000)
		b.add(some)
		all = append(all, some...)
	}
	want := naive(all, nil, b.params, b.now)
	for _, c := range want {
		if c.SelfSamples > 0 && c.Signal != sample.RunQ {
			t.Errorf("%v has a self part of %d samples", c.Key, c.SelfSamples)
		}
	}
	if !slices.ContainsFunc(want, func(c spec.Computed) bool { return c.SelfMean > 0.01 && c.SelfStdDev > 0 }) {
		t.Error("no spec has a self part: the test shows nothing of it")
	}
	st := b.agrees("new segments", want)
	if st.Segments != 15 || st.Read != 15 || st.Rows != int64(len(all)) {
		t.Errorf("%+v, want the 3 hours of 5 flushes", st)
	}
	if st := b.agrees("the same again", want); st.Read != 0 || st.Segments != 15 {
		t.Errorf("%+v: segments were read again", st)
	}
	for {
		more, err := b.store.Compact()
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			break
		}
	}
	if st := b.agrees("merged segments", want); st.Read != 3 || st.Segments != 3 || b.files() != 3 {
		t.Errorf("%+v and %d files, want 3 new segments and their digests only", st, b.files())
	}
}

// TestRevocationsTakeSamplesOut: of a machine, of a job, and of a machine's tasks of a job.
// Only the digests of their time are computed again.
func TestRevocationsTakeSamplesOut(t *testing.T) {
	b := newBench(t)
	all := random(rand.New(rand.NewPCG(17, 18)), 20_000)
	b.add(all)
	b.check("before", all)
	at := func(d time.Duration) sample.Millis { return sample.At(start.Add(d)) }
	for _, w := range []store.Window{
		{Machine: "m1", From: at(70 * time.Minute), To: at(80 * time.Minute)},
		{Job: "job-3", From: at(65 * time.Minute), To: at(99 * time.Minute)},
		{Machine: "m2", Job: "job-2", From: at(65 * time.Minute), To: at(99 * time.Minute)},
	} {
		victim := store.Window{Machine: "m1", Task: "/j2/3", Signal: sample.RunQ, From: at(62 * time.Minute), To: at(110 * time.Minute)}
		if st := b.check(fmt.Sprint(w), all, w, victim); st.Read != 1 {
			t.Errorf("%v: %+v, want one hour read again", w, st)
		}
	}
	if got, _ := b.learn(store.Window{Job: "job-3", To: at(5 * time.Hour)}); slices.ContainsFunc(got, func(c spec.Computed) bool { return c.Job == "job-3" }) {
		t.Error("a job without samples has a spec")
	}
}

// TestInstancesAreNoJobs: a container's identifier is the name of no job, and the number of
// keys that cannot become a spec is bounded.
func TestInstancesAreNoJobs(t *testing.T) {
	b := newBench(t)
	all := random(rand.New(rand.NewPCG(19, 20)), 3000)
	want := naive(all, nil, b.params, b.now)
	for i := range 1000 {
		s := all[i]
		s.Job = sample.JobName(fmt.Sprintf("cri-containerd-%064x.scope", i))
		all = append(all, s)
	}
	b.add(all)
	b.agrees("with containers", want)
}

// TestIncidentsTakeSamplesOut: samples of an incident are excluded from the digests of
// their segments and no others. If the incident changes, those are computed again.
func TestIncidentsTakeSamplesOut(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(5, 6))
	all := random(r, 20_000)
	b.add(all)
	b.check("before", all)
	at := func(d time.Duration) sample.Millis { return sample.At(start.Add(d)) }
	w := store.Window{Machine: "m1", Task: "/j2/3", Signal: sample.RunQ, From: at(62 * time.Minute), To: at(110 * time.Minute)}
	told := naive(all, []store.Window{w}, b.params, b.now)
	if st := b.agrees("an incident in the second hour", told, w); st.Read != 1 {
		t.Errorf("%+v: want one hour read again", st)
	}
	if st := b.agrees("it is told of again", told, w); st.Read != 0 {
		t.Errorf("%+v", st)
	}
	w.To = at(150 * time.Minute)
	if st := b.check("it goes on into the third hour", all, w); st.Read != 2 {
		t.Errorf("%+v: want two hours read again", st)
	}
	w.To = at(30 * time.Hour)
	if st := b.check("it goes on further", all, w); st.Read != 1 {
		t.Errorf("%+v: want the third hour read again, the second is as before", st)
	}
	// A long incident of all tasks does not distort the mean.
	var poisoned []sample.Sample
	var windows []store.Window
	for _, s := range all {
		if s.Signal == sample.RunQ && s.TS > at(2*time.Hour) {
			s.Cost *= 50
			windows = append(windows, store.Window{Machine: s.Machine, Task: s.Task, Signal: s.Signal, From: at(2 * time.Hour), To: at(3 * time.Hour)})
		}
		poisoned = append(poisoned, s)
	}
	clean := newBench(t)
	clean.add(poisoned)
	before, _ := b.learn()
	after, _ := clean.learn(windows...)
	for i := range before {
		if before[i].Signal != sample.RunQ {
			continue
		}
		if d := math.Abs(after[i].Mean - before[i].Mean); d > 0.05 {
			t.Errorf("%v: the mean went from %v to %v", before[i].Key, before[i].Mean, after[i].Mean)
		}
	}
	if got, _ := clean.learn(); slices.ContainsFunc(got, func(l spec.Computed) bool { return l.Signal == sample.RunQ && l.Mean < 5 }) {
		t.Error("without its incidents the same time moved no mean: the test shows nothing")
	}
}

// claims is a Parquet file whose metadata say that they hold two thousand million row groups.
const claims = "PAR1" + "\x49\xfc\xff\xff\xff\xff\x07\x00" + "\x08\x00\x00\x00PAR1"

// A digest that is damaged, truncated or of another time is computed again.
func TestDamagedDigestsAreMadeAgain(t *testing.T) {
	b := newBench(t)
	all := random(rand.New(rand.NewPCG(7, 8)), 6_000)
	b.add(all)
	want := naive(all, nil, b.params, b.now)
	b.agrees("before", want)
	r := rand.New(rand.NewPCG(9, 10))
	for round := range 6 {
		var paths []string
		if err := filepath.WalkDir(b.learner.Dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				paths = append(paths, path)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		path := paths[r.IntN(len(paths))]
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		switch round % 3 {
		case 0:
			text = text[:r.IntN(len(text))]
		case 1:
			text = bytes.Repeat([]byte{0xff}, len(text))
		case 2:
			text = []byte(claims)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if st := b.agrees(fmt.Sprint("round ", round), want); st.Read != 1 {
			t.Errorf("round %d: %+v, want one segment read again", round, st)
		}
	}
}

// A file that is not a segment is refused with its name and leaves no digest.
func TestWhatIsNoSegment(t *testing.T) {
	b := newBench(t)
	all := random(rand.New(rand.NewPCG(11, 12)), 1000)
	b.add(all)
	sn := b.store.Snapshot(0, 0)
	defer sn.Close()
	path := sn.Files(store.Samples)[0]
	rows := make([]trace.Row, 2)
	for i, job := range []string{"b", "a"} {
		rows[i].Set(&all[0], nil)
		rows[i].Job = job
	}
	var unsorted bytes.Buffer
	if err := parquet.Write(&unsorted, rows); err != nil {
		t.Fatal(err)
	}
	type other struct {
		Job int64 `parquet:"job"`
	}
	var columns bytes.Buffer
	if err := parquet.Write(&columns, []other{{1}}); err != nil {
		t.Fatal(err)
	}
	for want, text := range map[string][]byte{"not sorted": unsorted.Bytes(), "column": columns.Bytes(), "a list of 2147483647": []byte(claims), path: []byte("PAR1 and no more")} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := b.learner.Learn(t.Context(), sn, 0, nil, b.params, b.now); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v, want it to name %s and say %q", err, path, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.learner.Learn(ctx, sn, 0, nil, b.params, b.now); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled computation: %v", err)
	}
}

// TestOnlyWhatIsNewIsBrought: of a remote store only segments without a digest are
// fetched, also when their copies are gone. Each goes when it was read.
func TestOnlyWhatIsNewIsBrought(t *testing.T) {
	now := start.Add(4 * time.Hour)
	b, dir := &bucket{dir: t.TempDir()}, t.TempDir()
	s, err := store.Open(dir, store.Options{Now: func() time.Time { return now }, Bucket: b, Copies: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := spec.Paper()
	p.MinSamples = 20
	l := Learner{Dir: filepath.Join(t.TempDir(), "digests"), Threads: 2}
	r := rand.New(rand.NewPCG(15, 16))
	var all []sample.Sample
	for n, want := range []int{3, 3, 0} { // new segments: three hours, twice
		if want > 0 {
			some := random(r, 3000)
			all = append(all, some...)
			s.Add(&store.Batch{Source: store.Source{Stream: "samples", Machine: "m"}, N: uint64(n) + 1, Samples: some})
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Sweep(); err != nil { // there is no room for copies
			t.Fatal(err)
		}
		b.got.Store(0)
		sn := s.Snapshot(0, 0)
		learnt, err := l.Learn(t.Context(), sn, 0, nil, p, sample.At(now))
		if err != nil {
			t.Fatal(err)
		}
		// A computation over weeks needs no room for all of them at once.
		if left, err := filepath.Glob(filepath.Join(dir, "samples", "*", "*", "*.parquet")); err != nil || len(left) > 0 {
			t.Errorf("computation %d leaves %v, %v", n, left, err)
		}
		sn.Close()
		if got := int(b.got.Load()); got != want {
			t.Errorf("computation %d brought %d segments, want %d", n, got, want)
		}
		if diff := gocmp.Diff(naive(all, nil, p, sample.At(now)), learnt, about); diff != "" {
			t.Error(diff)
		}
	}
}

// bucket keeps a store's files in a folder other than the store's.
type bucket struct {
	dir string
	got atomic.Int64 // fetched files
}

func (b *bucket) path(name string) string { return filepath.Join(b.dir, filepath.FromSlash(name)) }

func (b *bucket) Put(ctx context.Context, name, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return b.Create(ctx, name, text)
}

func (b *bucket) Create(_ context.Context, name string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(b.path(name)), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(b.path(name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

func (b *bucket) Read(_ context.Context, name string) ([]byte, error) {
	return os.ReadFile(b.path(name))
}

func (b *bucket) Get(_ context.Context, name, path string) error {
	b.got.Add(1)
	text, err := os.ReadFile(b.path(name))
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

func (b *bucket) List(_ context.Context, folder string) (all []store.Entry, err error) {
	err = filepath.WalkDir(b.path(folder), func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) || err == nil && d.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(b.dir, path)
		all = append(all, store.Entry{Name: filepath.ToSlash(name)})
		return err
	})
	return all, err
}

func (b *bucket) Remove(_ context.Context, name string) error { return os.Remove(b.path(name)) }

func (b *bucket) URL(name string) string { return b.path(name) }

// FuzzRead: reading any file as a segment neither panics nor hangs.
func FuzzRead(f *testing.F) {
	all := random(rand.New(rand.NewPCG(13, 14)), 50)
	slices.SortFunc(all, func(a, b sample.Sample) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Platform, b.Platform))
	})
	var b bytes.Buffer
	w := trace.NewWriter(&b)
	for i := range all {
		if err := w.Write(&all[i]); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(dir, "segment")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		err := read(t.Context(), path, nil, func(_ spec.Key, h *spec.Hour) error {
			if len(h.Machines) == 0 || len(h.Machines[0].Tasks) == 0 || len(h.Sketch.Bins()) == 0 {
				t.Errorf("an hour of nothing: %+v", h)
			}
			return nil
		})
		_ = err // whether it is a segment does not matter here
	})
}

// TestRowsHoldHours: a row in a file holds all data of the hour.
func TestRowsHoldHours(t *testing.T) {
	h := spec.Hour{Start: 3_600_000, Newest: 3_600_500, Machines: []spec.MachineHour{
		{Machine: math.MaxUint64, CPU: 1.25, Cost: stat.Moments{N: 2, W: 2, W2: 2, Mean: 1.5, M2: 0.5}, Tasks: []spec.TaskSamples{{Task: math.MaxUint64, N: 1}, {Task: 7, N: 1}}},
		{Machine: 1, CPU: 2, Cost: stat.Moments{N: 1, W: 1, W2: 1, Mean: 5}, Tasks: []spec.TaskSamples{{Task: 8, N: 1}}},
	}}
	h.Usage[0].Add(1, 1)
	h.Usage[7].Add(2, 1)
	h.Usage[7].Add(5, 1)
	for _, x := range []float32{1, 2, 5} {
		h.Sketch.Add(x, 1)
	}
	var r row
	r.set(spec.Key{Job: "j"}, &h)
	got, err := r.hour()
	if diff := gocmp.Diff(h, got, gocmp.AllowUnexported(stat.Sketch{}), cmpopts.EquateApprox(1e-15, 0)); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for name, spoil := range map[string]func(*row){
		"lists of unlike lengths": func(r *row) { r.Mean = r.Mean[1:] },
		"an unknown level":        func(r *row) { r.Level[0] = spec.UsageBins },
		"no number":               func(r *row) { r.M2[1] = math.NaN() },
		"nothing":                 func(r *row) { r.Level, r.Samples, r.Mean, r.M2 = nil, nil, nil, nil },
		"no machine":              func(r *row) { r.Machine = nil },
		"a machine's samples":     func(r *row) { r.MachineSamples[0]++ },
		"a machine's tasks":       func(r *row) { r.MachineTasks[0] = 9 },
		"a task too many":         func(r *row) { r.MachineTasks[0]-- },
		"no usage":                func(r *row) { r.MachineCPU[1] = math.Inf(1) },
		"no bin":                  func(r *row) { r.Bin[0] = -1 },
	} {
		var r row
		r.set(spec.Key{Job: "j"}, &h)
		spoil(&r)
		if _, err := r.hour(); !errors.Is(err, errDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
