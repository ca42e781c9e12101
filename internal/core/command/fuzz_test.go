package command_test

import (
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
)

// FuzzTarget: a target from any entry point is refused with all its problems, or names tasks; and
// its text is UTF-8 of bounded length.
func FuzzTarget(f *testing.F) {
	f.Add("/a", "", "", false)
	f.Add(`"/a\xff"`, "", "", false)
	f.Add(`"`, "", "", false)
	f.Add("", "web", "batch", true)
	f.Fuzz(func(t *testing.T, task, job, class string, all bool) {
		c := command.Command{Why: "r", Uncap: &command.Target{Task: task, Job: job, Class: class, All: all}}
		err := c.Validate()
		if err != nil {
			if invalid, ok := errors.AsType[*command.InvalidError](err); !ok || len(invalid.Problems) == 0 {
				t.Errorf("%+v: %v", c.Uncap, err)
			}
			return
		}
		if text := c.String(); !utf8.ValidString(text) || len(text) > 5*command.MaxName {
			t.Errorf("%+v: %q", c.Uncap, text)
		}
		name, err := sample.ParseName(task)
		if task != "" && (err != nil || !c.Uncap.Matches(&sample.Task{Name: sample.TaskName(name)})) {
			t.Errorf("%q does not name the task %q: %v", task, name, err)
		}
	})
}

// FuzzLease: the text of a lease from any entry point.
func FuzzLease(f *testing.F) {
	for _, s := range []string{"5m", "99999h", "-1s", "1ns", "", "24h0m0.000000001s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var d command.Duration
		if d.UnmarshalText([]byte(text)) != nil {
			return
		}
		c := command.CapTask("/a", 1, 0, "r")
		c.Cap.For = d
		const second, day = 1_000_000_000, 24 * 3600 * 1_000_000_000
		if valid := c.Validate() == nil; valid != (d >= second && d <= day) {
			t.Errorf("%q: valid %v", text, valid)
		}
	})
}
