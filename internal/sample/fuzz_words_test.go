package sample

import "testing"

// FuzzParseFlags: what is read is written the same, as often as one likes.
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
