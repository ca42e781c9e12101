package sim

import (
	"math"
	"reflect"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/format/trace"
)

// TestWhoNamesAVictim: the accusation of an innocent that causes a quarter of the damage is right,
// and the victim's antagonist is not found by it.
func TestWhoNamesAVictim(t *testing.T) {
	m := newMachine(*family(t, "bandwidth/onset/strong/plain"), 4, simulator().shape, simulator().specs)
	for range 60 {
		m.step()
	}
	antagonist, innocent := m.antagonists[0], 0
	for i := range m.tasks {
		if x := &m.tasks[i]; i > 0 && !x.antagonist && x.sharesCache {
			innocent = i
		}
	}
	x := &m.tasks[innocent]
	x.weight = m.load / 2 / x.demand
	if !m.hurts(antagonist, 0) || !m.hurts(innocent, 0) {
		t.Fatal("one of the two does not hurt the victim")
	}
	victims := make([]int, len(m.tasks))
	for i := range victims {
		victims[i] = -1
	}
	victims[0] = 0
	g := &caseRun{machine: m, victim: victims, accused: map[[2]int]bool{}, result: Case{Victims: []Victim{{Task: m.tasks[0].id.Name}}}}
	for _, c := range []struct {
		suspect int
		named   bool
	}{{innocent, false}, {antagonist, true}} {
		who := detect.Suspect{Task: m.tasks[c.suspect].id}
		who.Level = detect.Likely
		g.accuse(1, &m.tasks[0].id, &who)
		if last := g.result.Accusations[len(g.result.Accusations)-1]; !last.Right || g.result.Victims[0].Named != c.named {
			t.Errorf("%s is accused, an antagonist is %t: right %t, named %t", last.Suspect, c.named, last.Right, g.result.Victims[0].Named)
		}
	}
}

// TestTheUsualLoadHurtsNoTask: an innocent hurts a victim only in a minute in which that is damaged, not
// by its part of the load that the usual cost contains.
func TestTheUsualLoadHurtsNoTask(t *testing.T) {
	m := newMachine(*family(t, "bandwidth/onset/strong/plain"), 4, simulator().shape, simulator().specs)
	for range 3 {
		m.step()
	}
	innocent := 0
	for i := range m.tasks {
		if x := &m.tasks[i]; i > 0 && !x.antagonist && x.sharesCache {
			innocent = i
		}
	}
	v, x := &m.tasks[0], &m.tasks[innocent]
	v.sensitivity, x.weight = 1, m.load/2/x.demand
	for damage, want := range map[float64]bool{-0.1: false, 0: false, 0.01: false, 0.1: true} { // of the mean
		for i := range m.past {
			if p := &m.past[i]; len(p.expected) > 0 {
				p.expected[0] = v.mean * (1 + damage)
			}
		}
		if got := m.hurts(innocent, 0); got != want {
			t.Errorf("with damage of %v it hurts: %t", damage, got)
		}
	}
}

// TestAntagonistsThatSuffer: what they cost rises with the load that they make, and the truth of the
// others stays the same.
func TestAntagonistsThatSuffer(t *testing.T) {
	costs := map[float64]float64{} // of the antagonist by how much it suffers, highest
	var labels []trace.Label
	for _, suffer := range []float64{0, 1} {
		m := newMachine(*family(t, "llc/onset/strong/plain"), 4, simulator().shape, simulator().specs)
		c := play(m, &m.scenario, 4, Setup{Minutes: 75, Blind: true, Suffer: suffer})
		if labels == nil {
			labels = c.Labels
		}
		if len(labels) == 0 || !reflect.DeepEqual(labels, c.Labels) {
			t.Errorf("it suffers %v times as much as the victim: labels %v, want %v", suffer, c.Labels, labels)
		}
		a := &m.tasks[m.antagonists[0]]
		costs[suffer] = a.expected / a.mean
	}
	if costs[0] != 1 || costs[1] < 1.3 {
		t.Errorf("expected cost ÷ mean by how much it suffers: %v", costs)
	}
}

// TestAnEndedTaskHurtsNoTask: what an antagonist did is remembered for ten minutes, also of one that ended.
func TestAnEndedTaskHurtsNoTask(t *testing.T) {
	m := newMachine(*family(t, "bandwidth/onset/strong/plain"), 4, simulator().shape, simulator().specs)
	for range 60 {
		m.step()
	}
	antagonist := m.antagonists[0]
	m.reaction = exits
	for range 2 {
		m.cap(antagonist, 0.1)
		m.cap(antagonist, math.Inf(1))
	}
	if !m.tasks[antagonist].gone || !m.hurts(antagonist, 0) {
		t.Fatalf("ended %t, has hurt its victim %t", m.tasks[antagonist].gone, m.hurts(antagonist, 0))
	}
	for range memory {
		m.step()
	}
	if m.hurts(antagonist, 0) {
		t.Error("it hurts its victim ten minutes after its end")
	}
}
