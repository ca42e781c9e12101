package rivals

import (
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
)

func TestLoadWithoutSwitches(t *testing.T) {
	whole, err := Load(detect.EvidenceMethod)
	if err != nil {
		t.Fatal(err)
	}
	for key, on := range switches(&whole.Switches) {
		if !*on {
			r, err := Load(detect.EvidenceMethod + "+" + detect.Method(key))
			if err != nil || !*switches(&r.Switches)[key] {
				t.Errorf("%s: %v", r.Method, err)
			}
			continue
		}
		r, err := Load(detect.EvidenceMethod + "-" + detect.Method(key))
		if err != nil {
			t.Fatal(err)
		}
		if *switches(&r.Switches)[key] {
			t.Errorf("%s: switch is on", r.Method)
		}
		*switches(&r.Switches)[key] = true
		if r.Switches != whole.Switches {
			t.Errorf("%s turns off more than its switch: %+v", r.Method, r.Switches)
		}
	}
	two, err := Load("evidence-reach-look_back")
	if err != nil || two.Switches.Reach || two.Switches.LookBack || !two.Switches.PhaseChange {
		t.Errorf("two switches: %+v, %v", two.Switches, err)
	}
}

func TestLoadUnknown(t *testing.T) {
	for name, want := range map[detect.Method]string{
		"evidenc":              "want one of [quell evidence cpi2",
		"evidence-":            `has no switch ""`,
		"evidence-lookback":    `evidence has no switch "lookback": want one of [bounds`,
		"evidence-reach-reach": `has no switch "reach"`,
		"cpi2-reach":           `cpi2 has no switch "reach"`,
		"cpi2-3sigma-reach":    `cpi2 has no switch "3sigma"`,
		"nope-reach":           "want one of",
		"evidence+reach":       "a switch that it does not turn on",
		"nope+groups":          "a switch that it does not turn on",
	} {
		if _, err := Load(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
