package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/machine/counter"
)

// A source that has no ability in Info causes no metric of that ability, not even a 0, and
// no pause.
func TestASourceWithoutAbilities(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.source.totals = counter.Totals{Lost: 7, PairsDropped: 21, Unattributed: time.Second}
		r.switches = 1e6
		r.add("/web/1", 0.5)
		r.start()
		defer r.stop()
		r.pass(3 * time.Minute)
		text, got := r.scrape()
		for _, name := range []string{"quell_signal_lost_total", "quell_signal_refused_pairs_total", "quell_signal_unattributed_seconds_total",
			"quell_signal_tax_ratio", "quell_signal_resting"} {
			if strings.Contains(text, "\n"+name) {
				t.Errorf("%s is exposed", name)
			}
		}
		if n := got[`quell_signal_tasks{signal="cpi",state="counted"}`]; n != "1" {
			t.Errorf("%q tasks are counted, want 1", n)
		}
	})
}

// Losses are counted also where the kernel does not report served tasks.
func TestLossesWithoutAccounting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.source.info.CountsLosses, r.source.totals = true, counter.Totals{Lost: 7, PairsDropped: 21, Unattributed: time.Second}
		r.add("/web/1", 0.5)
		r.start()
		defer r.stop()
		r.pass(90 * time.Second)
		text, got := r.scrape()
		if got[`quell_signal_lost_total{signal="cpi"}`] != "7" || got[`quell_signal_refused_pairs_total{signal="cpi"}`] != "21" ||
			strings.Contains(text, "\nquell_signal_unattributed_seconds_total") {
			t.Errorf("exposed: %s", text)
		}
	})
}

// Between windows a source counts on only if the next one opens at once.
func TestNoSourceStaysOnWithoutANextWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/web/1", 0.5)
		r.start()
		defer r.stop()
		r.pass(11 * time.Second)
		if r.source.open || r.source.on {
			t.Errorf("window open: %v, counting: %v", r.source.open, r.source.on)
		}
	})
}
