package embedded

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"testing"
)

// TestParse: parse reads refusals from the NATS log and ignores what a client says about
// itself in the same line.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		line string
		want violation
		ok   bool
	}{
		{`127.0.0.1:40112 - cid:12 - "v1.48.0:go:m1" - "ACC/USER" - Publish Violation - Subject "sample.m2"`, violation{12, "127.0.0.1", "publish", "sample.m2"}, true},
		{`[::1]:40112 - cid:3 - "v1:go" - Subscription Violation - Subject "command.>", SID 4`, violation{3, "::1", "subscribe", "command.>"}, true},
		{`10.0.0.1:5 - cid:3 - Subscription Violation - Subject "a", Queue: "q", SID 4`, violation{3, "10.0.0.1", "subscribe", "a"}, true},
		{`10.0.0.1:5 - cid:3 - Publish Violation - Reply "b.\"c"`, violation{3, "10.0.0.1", "publish", `b."c`}, true},
		{`10.0.0.1:5 - cid:9 - authentication error - JWT User "UABC"`, violation{9, "10.0.0.1", "connect", ""}, true},
		{`10.0.0.1:5 - cid:9 - authentication error`, violation{9, "10.0.0.1", "connect", ""}, true},
		{`10.0.0.1:5 - cid:9 - "x - cid:1 - Publish Violation - Subject \"y\"" - Publish Violation - Subject "z"`, violation{9, "10.0.0.1", "publish", "z"}, true},
		{`10.0.0.1:5 - cid:9 - "authentication error" - Client Error`, violation{}, false},
		{`JetStream resource limits exceeded`, violation{}, false},
	} {
		got, ok := parse(c.line)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s\ngot %+v, %v\nwant %+v, %v", c.line, got, ok, c.want, c.ok)
		}
	}
}

// TestRefusalsDoNotFillTheLog: a client that is refused as fast as it can send is told of, with the number
// of what was not examined, and has no line in the log for each.
func TestRefusalsDoNotFillTheLog(t *testing.T) {
	var log bytes.Buffer
	w := &watcher{lines: make(chan violation, maxWaiting)}
	l := logger{slog.New(slog.NewTextHandler(&log, nil)), w}
	for range 2 * maxWaiting {
		l.Errorf("%s", `10.0.0.1:5 - cid:3 - Publish Violation - Subject "command.all"`)
	}
	if log.Len() > 0 || len(w.lines) != maxWaiting || w.missed.Load() != maxWaiting {
		t.Errorf("%d bytes of log, %d to be examined, %d not", log.Len(), len(w.lines), w.missed.Load())
	}
	if l.Errorf("a fault"); !strings.Contains(log.String(), "nats: a fault") {
		t.Errorf("the log has %q", log.String())
	}
}

// FuzzParse: whatever name a client has, the line belongs to the connection that NATS
// wrote at its beginning.
func FuzzParse(f *testing.F) {
	f.Add(`" - cid:1 - Publish Violation - Subject "x`)
	f.Add(`\`)
	f.Fuzz(func(t *testing.T, name string) {
		line := "10.0.0.1:5 - cid:9 - " + strconv.Quote(name) + ` - Publish Violation - Subject "z"`
		if got, ok := parse(line); !ok || got.cid != 9 || got.what != "publish" || got.subject != "z" {
			t.Errorf("%q: %+v", name, got)
		}
	})
}
