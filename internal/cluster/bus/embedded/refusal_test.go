package embedded

import (
	"bytes"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
	w := &watcher{lines: make(chan violation, maxWaiting), waiting: map[string]int{}}
	l := logger{slog.New(slog.NewTextHandler(&log, nil)), w}
	for range 2 * maxWaiting {
		l.Errorf("%s", `10.0.0.1:5 - cid:3 - Publish Violation - Subject "command.all"`)
	}
	if n := len(w.lines); log.Len() > 0 || n == 0 || n > maxWaiting/share || int(w.missed.Load()) != 2*maxWaiting-n {
		t.Errorf("%d bytes of log, %d to be examined, %d not", log.Len(), len(w.lines), w.missed.Load())
	}
	if l.Errorf("a fault"); !strings.Contains(log.String(), "nats: a fault") {
		t.Errorf("the log has %q", log.String())
	}
}

// TestAttackRefusalsAheadOfOthers: clients at several addresses that are refused without a pause leave room for
// the refusal of another.
func TestAttackRefusalsAheadOfOthers(t *testing.T) {
	w := &watcher{lines: make(chan violation, maxWaiting), waiting: map[string]int{}}
	const noisy = 16
	for range maxWaiting {
		for i := range noisy {
			w.line(fmt.Sprintf(`10.0.0.%d:5 - cid:%d - Publish Violation - Subject "command.all"`, i, i))
		}
	}
	w.line(`10.0.1.1:5 - cid:99 - authentication error`)
	var last violation
	n := len(w.lines)
	for len(w.lines) > 0 {
		last = <-w.lines
		w.read(last)
	}
	if last.cid != 99 || int(w.missed.Load()) != noisy*maxWaiting+1-n || len(w.waiting) > 0 {
		t.Errorf("the last of %d is %+v, %d are not examined; %v", n, last, w.missed.Load(), w.waiting)
	}
}

// TestWhatIsNotExaminedIsToldOnceAMinute: each of these entries has another number, so the audit log counts none as a
// repetition.
func TestWhatIsNotExaminedIsToldOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []Refusal
		w := &watcher{tell: func(r Refusal) { told = append(told, r) }, lines: make(chan violation), ended: make(chan struct{})}
		w.done.Go(w.run)
		for range 100 {
			w.missed.Add(1000)
			<-time.After(700 * time.Millisecond)
		}
		w.close()
		if len(told) != 1 || !strings.HasPrefix(told[0].Reason, "86000 more refusals") {
			t.Errorf("%+v", told)
		}
	})
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
