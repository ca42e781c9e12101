package command

import "testing"

func TestRateInTheUnitsOfPeople(t *testing.T) {
	for _, c := range []struct {
		text string
		want Rate
		ok   bool
	}{
		{"0.1", 0.1, true}, {"10%", 0.1, true}, {"10 %", 0.1, true}, {"100m", 0.1, true}, {"2", 2, true}, {"250 %", 2.5, true},
		{"", 0, false}, {"%", 0, false}, {"ten", 0, false}, {"1,5", 0, false},
	} {
		var got Rate
		if err := got.Set(c.text); got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %g, %v", c.text, got, err)
		}
	}
}
