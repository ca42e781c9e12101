package sample

import "testing"

// FuzzParseFlags: parsed flags are unchanged after they are written and parsed again.
func FuzzParseFlags(f *testing.F) {
	for _, s := range []string{"", "capped", "capped+throttled+stolen+restarted+split", "capped+", "+", "Capped", "capped+capped"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		flags, err := ParseFlags(text)
		if err != nil {
			return
		}
		if again, err := ParseFlags(flags.String()); err != nil || again != flags {
			t.Errorf("%q: %v, again %v, %v", text, flags, again, err)
		}
	})
}
