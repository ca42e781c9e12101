package placement

import (
	"encoding/csv"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func unmeasured(names ...string) (all []Task) {
	for _, n := range names {
		all = append(all, Task{Name: n, Misses: -1, Load: -1})
	}
	return all
}

// papers returns what foreground tasks lost together with background ones on KVM, pinned
// per-thread (paper 003, figure 3c).
func papers(t *testing.T) (names []string, all []Degradation) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "..", "testdata", "reference", "pinning_interference.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r[0] != "kvm" || r[1] != "per-thread" {
			continue
		}
		x, err := strconv.ParseFloat(r[4], 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Degradation{r[2], r[3], x / 100})
		if r[2] == r[3] {
			names = append(names, r[2])
		}
	}
	if len(names) != 5 || len(all) != 25 {
		t.Fatalf("%d names, %d pairs", len(names), len(all))
	}
	return names, all
}

// every is the least loss of all pairings, by trying each: the simple reference.
func every(loss func(a, b Task) float64, tasks []Task) float64 {
	if len(tasks) < 2 {
		return 0
	}
	least := math.Inf(1)
	for j := 1; j < len(tasks); j++ {
		var rest []Task
		rest = append(append(rest, tasks[1:j]...), tasks[j+1:]...)
		least = min(least, loss(tasks[0], tasks[j])+every(loss, rest))
	}
	return least
}

// TestPapersTasksArePaired: for the paper's five workloads, two of each, no pairing loses
// less than the advised one, and a random one loses more.
func TestPapersTasksArePaired(t *testing.T) {
	names, measured := papers(t)
	tasks := unmeasured(append(names, names...)...)
	a, err := Advise(tasks, measured)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newModel(tasks, measured)
	if err != nil {
		t.Fatal(err)
	}
	want := every(func(a, b Task) float64 { l, _ := m.loss(a, b); return l }, tasks)
	if math.Abs(a.Loss-want) > 1e-9 || !a.Exact || len(a.Pairs) != 5 || !(a.Random > a.Loss) {
		t.Errorf("%+v, want a loss of %v", a, want)
	}
	for _, p := range a.Pairs {
		if p.Basis != Measured || p.Pinning != NotPinned {
			t.Errorf("%+v", p)
		}
	}
	t.Logf("%.3f, by lot %.3f: %+v", a.Loss, a.Random, a.Pairs)
}

// TestExchangeIsNearTheBest: where both can be computed, the pairing by exchanges loses
// no less than the best, and is as good most of the time.
func TestExchangeIsNearTheBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	total := func(loss [][]float64, with []int) (sum float64) {
		for i, j := range with {
			if with[j] != i || i == j {
				t.Fatalf("no pairing: %v", with)
			}
			sum += loss[i][j] / 2
		}
		return sum
	}
	same := 0
	for range 200 {
		loss := make([][]float64, 10)
		for i := range loss {
			loss[i] = make([]float64, 10)
			for j := range i {
				loss[i][j] = rng.Float64()
				loss[j][i] = loss[i][j]
			}
		}
		exact, near := total(loss, exactPairing(loss)), total(loss, localSearch(loss))
		if near < exact-1e-9 {
			t.Fatalf("the best loses %v, another %v", exact, near)
		}
		if near < exact+1e-9 {
			same++
		}
	}
	if same < 100 {
		t.Errorf("%d of 200 are as good", same)
	}
}

// TestMissesStandIn: without measurements, the task with the most misses is paired with
// the one with the fewest; with some, the others are on their scale.
func TestMissesStandIn(t *testing.T) {
	var tasks []Task
	for i, m := range []float64{1, 2, 3, 4} {
		tasks = append(tasks, Task{Name: fmt.Sprint(i), Misses: m * 1e6, Load: -1})
	}
	a, err := Advise(tasks, nil)
	if err != nil || len(a.Pairs) != 2 {
		t.Fatal(a, err)
	}
	for _, p := range a.Pairs {
		if pair := p.A + p.B; p.Basis != Misses || pair != "03" && pair != "12" {
			t.Errorf("%+v", p)
		}
	}
	a, err = Advise(tasks[:3], []Degradation{{"0", "1", 0.2}, {"1", "0", 0.2}})
	if err != nil {
		t.Fatal(err)
	}
	m, _ := newModel(tasks, []Degradation{{"0", "1", 0.2}, {"1", "0", 0.2}})
	if l, basis := m.loss(tasks[1], tasks[2]); math.Abs(l-1.2) > 1e-9 || basis != Misses {
		t.Errorf("%v by %s: 2·3 is three times 1·2, which was 0.4", l, basis)
	}
	if l, basis := m.loss(tasks[0], tasks[1]); math.Abs(l-0.4) > 1e-9 || basis != Measured {
		t.Errorf("%v by %s", l, basis)
	}
	if l, basis := m.loss(tasks[0], Task{Name: "new", Misses: -1}); l != 0.4 || basis != Unknown {
		t.Errorf("%v by %s: the mean of what is known", l, basis)
	}
	if last := a.Pairs[len(a.Pairs)-1]; last.Basis != Alone || last.A != "2" || last.B != "" {
		t.Errorf("of three the one that misses most stays alone: %+v", a.Pairs)
	}
}

// TestTheOrderOfTasksDoesNotMatter, and large numbers of tasks terminate.
func TestTheOrderOfTasksDoesNotMatter(t *testing.T) {
	names, measured := papers(t)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{1, 7, 12, 40} {
		var tasks []Task
		for i := range n {
			tasks = append(tasks, unmeasured(names[i%len(names)])...)
		}
		want, err := Advise(tasks, measured)
		if err != nil || len(want.Pairs) != (n+1)/2 || want.Exact != (n <= 16) {
			t.Fatalf("%d: %+v, %v", n, want, err)
		}
		rng.Shuffle(n, func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
		if got, _ := Advise(tasks, measured); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%d in another order: %+v, want %+v", n, got, want)
		}
	}
}

// TestPin is the rule of paper 003, section IV-C.
func TestPin(t *testing.T) {
	for _, c := range []struct {
		a, b float64
		want Pinning
	}{{1, 0.9, PerChip}, {1, 0.5, PerChip}, {1, 0.49, PerThread}, {0, 1, PerThread}, {0.2, 0.2, PerThread}, {-1, 1, NotPinned}, {1, -1, NotPinned}, {math.NaN(), 1, NotPinned}} {
		if got := pin(c.a, c.b); got != c.want {
			t.Errorf("%v and %v: %q, want %q", c.a, c.b, got, c.want)
		}
	}
}

func TestWhatMakesNoSenseIsRefused(t *testing.T) {
	two := unmeasured("a", "b")
	for _, c := range []struct {
		tasks    []Task
		measured []Degradation
		want     string
	}{
		{nil, nil, "want 1 to 1000"},
		{make([]Task, 1001), nil, "want 1 to 1000"},
		{two, []Degradation{{"a", "b", 1}, {"a", "b", 2}}, "given twice"},
		{two, []Degradation{{"a", "b", math.NaN()}}, "want a number"},
		{two, []Degradation{{"a", "b", -1}}, "above -1"},
		{[]Task{{Name: "a", Misses: math.Inf(1)}}, nil, "want a number"},
		{[]Task{{Name: "a", Misses: 1}, {Name: "a", Misses: 2}}, nil, "one number for all"},
	} {
		if _, err := Advise(c.tasks, c.measured); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %v: %v, want %q", c.tasks, c.measured, err, c.want)
		}
	}
}
