package bus

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// putSpecs stores n specs of a job on platform p.
func putSpecs(t *testing.T, b *Bus, job sample.JobName, n int) {
	t.Helper()
	all := make([]spec.Spec, n)
	for i := range all {
		all[i] = spec.Spec{Key: spec.Key{Job: job, Platform: "p", Signal: sample.CPI, Variant: fmt.Sprint("v", i)}, State: spec.Ready, Mean: 1, StdDev: 0.1, Samples: 1000, Tasks: 10}
	}
	if err := b.PutSpecs(patient(t), wire.SpecsOf(job, "p", 1, all)); err != nil {
		t.Fatal(err)
	}
}

// TestLargeSpecs: an answer that would be too large leaves some out, which the agent asks for again.
func TestLargeSpecs(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	const each = 5000
	var jobs []sample.JobName
	for i := range 4 {
		jobs = append(jobs, sample.JobName(fmt.Sprint("large-", i)))
		putSpecs(t, b, jobs[i], each)
	}
	stored, err := storedSpecs(patient(t), b, "large-0", "p")
	if err != nil {
		t.Fatal(err)
	}
	if data, err := wire.Marshal(stored); err != nil || 3*len(data) < answerBytes || len(data) > maxMessage/2 {
		t.Fatalf("specs of %d bytes do not test it, %v", len(data), err)
	}
	u := openUplink(t, a, url, "m", nil)
	u.WatchSpecs("p", jobs)
	n := 0
	quelltest.Until(t, "all have come", func() bool { n += len(u.Specs()); return n == 4*each })
}

// TestSpecsAreReadOnce: what many machines ask for at once is read once.
func TestSpecsAreReadOnce(t *testing.T) {
	a := newAuthority(t)
	b := openBus(t, a, serveHere(t, a), 1)
	putSpecs(t, b, "web", 1)
	question, err := wire.Marshal(&wire.Specs{Job: "web", Platform: "p"})
	if err != nil {
		t.Fatal(err)
	}
	const machines = 100
	reads, answers := b.nc.Stats().OutMsgs, b.commands.link.nc.Stats().OutMsgs
	read := map[string][]byte{}
	for i := range machines {
		m := &nats.Msg{Subject: wire.QuestionSubject(fmt.Sprint("m", i)), Data: question}
		if err := b.answerSpecs(patient(t), m, read); err != nil {
			t.Fatal(err)
		}
	}
	reads, answers = b.nc.Stats().OutMsgs-reads, b.commands.link.nc.Stats().OutMsgs-answers
	if reads != 1 || answers != machines {
		t.Errorf("%d reads for %d answers to %d machines", reads, answers, machines)
	}
	in := newInbox(0)
	for i := range machines {
		in.put(&nats.Msg{Subject: wire.QuestionSubject(fmt.Sprint("m", i%10))})
	}
	if n := in.waiting(); n != 10 {
		t.Errorf("%d wait, want 10", n)
	}
}

// TestSpecsOfLongNames: the agent's longest name of a job has its specs. A longer one, as only a machine that makes it up
// has, costs a server no connection, and keeps no answer waiting.
func TestSpecsOfLongNames(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	longest, longer := sample.JobName(strings.Repeat("/", 1024)), sample.JobName(strings.Repeat("/", 1400))
	putSpecs(t, b, longer, 1)
	putSpecs(t, b, longest, 1)
	data, err := b.readSpecs(t.Context(), wire.SpecKey(string(longer), "p"), &wire.Specs{Job: string(longer), Platform: "p"})
	var none wire.Specs
	if err == nil {
		err = wire.Unmarshal(data, &none)
	}
	if err != nil || none.Job != string(longer) || none.Platform != "p" || none.Revision != 0 {
		t.Errorf("of a longer name: revision %d, %v", none.Revision, err)
	}
	u := openUplink(t, a, url, "m", nil)
	u.WatchSpecs("p", []sample.JobName{longest})
	quelltest.Until(t, "the longest name's come", func() bool { return len(u.Specs()) == 1 })
	if n := b.nc.Stats().Reconnects; n > 0 {
		t.Errorf("the server's connection was lost %d times", n)
	}
}

// TestAttackQuestionsWithoutAPause: a machine that asks for specs without a pause, for too many, for such with
// names that NATS would end the server's connection for, and for the answer to be sent to others, is answered
// ten times in a second, itself alone. Others are answered meanwhile.
func TestAttackQuestionsWithoutAPause(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	putSpecs(t, b, "web", 1)
	creds := credentials(t, a, authority.Agent, "m1", 0)
	asks, hears := connect(t, url, creds, credential.Commands), connect(t, url, creds, credential.Specs)
	own, announced := make(chan *nats.Msg, 10_000), make(chan *nats.Msg, 10)
	err := b.nc.Flush() // web's have been announced
	if err == nil {
		_, err = asks.ChanSubscribe(wire.RenewedSubject("m1"), own)
	}
	if err == nil {
		_, err = hears.ChanSubscribe(wire.AllSpecs, announced)
	}
	if err == nil {
		err = hears.FlushTimeout(time.Minute)
	}
	if err != nil {
		t.Fatal(err)
	}
	var questions [][]byte
	for i := range 2 * mostAsked {
		m := &wire.Specs{Job: fmt.Sprint("job-", i), Platform: "p"}
		if i == 0 {
			m.Job = strings.Repeat("x", 5000)
		}
		data, err := wire.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		questions = append(questions, data)
	}
	begun := time.Now()
	for range 3000 {
		if err := asks.PublishRequest(wire.QuestionSubject("m1"), wire.SpecSubject("web", "p"), wire.Pack(questions...)); err != nil {
			t.Fatal(err)
		}
	}
	u := openUplink(t, a, url, "m2", nil)
	u.WatchSpecs("p", []sample.JobName{"web"})
	quelltest.Until(t, "another is answered", func() bool { return len(u.Specs()) == 1 })
	if err := errors.Join(asks.FlushTimeout(time.Minute), hears.FlushTimeout(time.Minute)); err != nil {
		t.Fatal(err)
	}
	n, most := len(own), int(time.Since(begun)/(askPause/2))+1
	if n == 0 || n > most || len(announced) > 0 {
		t.Errorf("it has %d answers, want 1 to %d; those who follow jobs have %d", n, most, len(announced))
	}
	for range n {
		parts := 0
		for range wire.Unpack((<-own).Data) {
			parts++
		}
		if parts != mostAsked {
			t.Errorf("an answer has %d specs, want %d", parts, mostAsked)
		}
	}
	if err := b.Err(); err != nil || b.nc.Stats().Reconnects > 0 {
		t.Errorf("the server's connection: %v, %d times lost", err, b.nc.Stats().Reconnects)
	}
}
