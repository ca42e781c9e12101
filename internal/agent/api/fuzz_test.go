package api

import (
	"net/url"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
)

// FuzzDecode: whatever a client of the agent's socket sends as a command, it is refused with a
// reason, or is one action with valid limits.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"why":"r","cap":{"task":"\"/a\\xff\"","rate":0.1,"for":"5m"}}`, `{"why":"r","uncap":{"all":true}}`, `{"cap":null,"pardon":{}}`,
		`{"why":"r","protect":{"task":"\""}}`, `{} {}`, `{"why":"\ud800"}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var c command.Command
		if Decode(strings.NewReader(body), &c) != nil {
			return
		}
		switch err := c.Validate(); {
		case err != nil && err.Error() == "":
			t.Errorf("%s: refused without a reason", body)
		case err == nil && (c.Kind() == "" || c.Object() == "" || c.Why == ""):
			t.Errorf("%s: accepted as %q", body, c.String())
		case err == nil && c.Cap != nil && !(c.Cap.Rate > 0 && c.Cap.For > 0):
			t.Errorf("%s: a cap to %v for %v", body, c.Cap.Rate, c.Cap.For)
		}
	})
}

// FuzzParseQuery: the parameters of a query for incidents are refused, or are what Query writes.
func FuzzParseQuery(f *testing.F) {
	f.Add("open=true&since=5&victim=/a*&limit=3")
	f.Add("limit=-1")
	f.Add("since=9999999999999999999&victim=%ff")
	f.Fuzz(func(t *testing.T, raw string) {
		v, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		q, err := ParseQuery(v)
		if err != nil {
			return
		}
		if again, err := ParseQuery(Query(q)); err != nil || again != q {
			t.Errorf("%q: %+v, then %+v, %v", raw, q, again, err)
		}
		_ = logbook.Matches(q.Victim, &sample.Task{Name: sample.TaskName(raw)}) // ends
	})
}
