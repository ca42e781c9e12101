package pipeline_test

import (
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// A report that cpi contradicts accuses no task. A job whose reports were contradicted
// repeatedly is named, and its reports accuse no task where nothing contradicts them.
func TestALiarIsDistrusted(t *testing.T) {
	for _, rule := range []detect.Method{detect.EvidenceMethod, detect.Quell} {
		for seed := range uint64(9) {
			f := newFraming(t, rule, seed, true)
			f.play(45, sample.CPT, map[sample.SignalName]float64{sample.CPI: 1})
			if f.accused != 0 || f.capped != 0 || !strings.Contains(f.reason, "cpi did not rise with it") {
				t.Errorf("%s, seed %d: contradicted, %d accusations, %d caps; %s", rule, seed, f.accused, f.capped, f.reason)
			}
			f.play(60, sample.CPT, map[sample.SignalName]float64{sample.CPI: 1})
			who := f.p.Distrusted(sample.Millis(f.minute) * 60_000)
			if len(who) != 1 || who[0].Job != "liar" || who[0].Task != "/liar" || who[0].Signal != sample.CPT {
				t.Fatalf("%s, seed %d: distrusted: %+v", rule, seed, who)
			}
			f.play(60, sample.CPT, nil)
			if f.accused != 0 || f.capped != 0 || !strings.Contains(f.reason, "is not believed") {
				t.Errorf("%s, seed %d: distrusted, %d accusations, %d caps; %s", rule, seed, f.accused, f.capped, f.reason)
			}
			// It is believed again where a witness agrees, and after a day without lies.
			f.play(60, sample.CPT, map[sample.SignalName]float64{sample.CPI: 1.9})
			if f.accused == 0 {
				t.Errorf("%s, seed %d: not believed although cpi agrees; %s", rule, seed, f.reason)
			}
			f.play(24*60, "", map[sample.SignalName]float64{sample.CPI: 1})
			if who := f.p.Distrusted(sample.Millis(f.minute) * 60_000); len(who) != 0 {
				t.Errorf("%s, seed %d: after a day: %+v", rule, seed, who)
			}
		}
	}
}
