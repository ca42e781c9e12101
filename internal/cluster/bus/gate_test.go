package bus

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// FuzzGate: no bytes of the bus are taken for decisions, and of bytes that a server has signed only
// decisions for this machine or for all.
func FuzzGate(f *testing.F) {
	a := newAuthority(f)
	agent := credentials(f, a, authority.Agent, "m1", 0)
	server, err := credential.Load(credentials(f, a, authority.Server, "server", 0))
	if err != nil {
		f.Fatal(err)
	}
	now := time.Now()
	for _, machine := range []string{"m1", "m2", ""} {
		plain, err := wire.Marshal(&wire.Decisions{Machine: machine, Revision: 7, Signed: now.UnixMilli(), Fresh: now.Add(freshFor).UnixMilli()})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(plain)
		s, err := server.Sign(plain)
		if err != nil {
			f.Fatal(err)
		}
		signed, err := wire.Marshal(&wire.SignedDecisions{Decisions: append(plain, 0), Signer: s.Signer, Endorsements: s.Endorsements, Signature: s.Bytes})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(signed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g := openGate("m1", t.TempDir(), agent)
		if changed, err := g.open(data, now); changed || err == nil || len(g.held) > 0 {
			t.Fatalf("taken: %v, %v, %v", changed, err, g.held)
		}
		s, err := server.Sign(data)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := wire.Marshal(&wire.SignedDecisions{Decisions: data, Signer: s.Signer, Endorsements: s.Endorsements, Signature: s.Bytes})
		if err != nil {
			t.Fatal(err)
		}
		changed, err := g.open(signed, now)
		for of, d := range g.held {
			if !changed || err != nil || d.Machine != of || of != "" && of != "m1" || d.Revision == 0 {
				t.Errorf("%v, %v; held for %q: %v", changed, err, of, d)
			}
		}
		// What was kept is read back by the next run, also if it is damaged.
		again := openGate("m1", g.dir, agent)
		if changed && errors.Is(err, nil) && len(again.held) != len(g.held) {
			t.Errorf("kept %v, read %v", g.held, again.held)
		}
		(&document{Decisions: &wire.Decisions{List: again.list()}}).decisions(now)
	})
}

// TestALongState: a machine on which decisions about thousands of tasks were refused is heard of.
func TestALongState(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := serveDecisions(t, openBus(t, a, url, 1))
	m := obey(t, follower(t, a, url, "m"))
	quelltest.Until(t, "it has what stands", func() bool { s := b.state("m"); return s != nil && s.All > 0 })
	long := &wire.State{Agent: "long"}
	for i := range 2 * command.MaxDecisions {
		r := &wire.Reply{Id: fmt.Sprint(i), Message: strings.Repeat("é", 300)}
		for range 1000 {
			r.Refused = append(r.Refused, strings.Repeat("x", 200))
		}
		long.Outcomes = append(long.Outcomes, r)
	}
	m.Report(long)
	quelltest.Until(t, "the server hears of it", func() bool { s := b.state("m"); return s != nil && s.Agent == "long" })
	s := b.state("m")
	if r := s.Outcomes[7]; len(s.Outcomes) != len(long.Outcomes) || r.Id != "7" || len(r.Refused) != 6 || r.Refused[5] != "995 more" || !strings.HasSuffix(r.Message, "é …") {
		t.Errorf("%d outcomes, one is %v", len(s.Outcomes), r)
	}
}

// TestAModeIsNeverOneTooMany: enforcement can be ended next to as many decisions as may stand.
func TestAModeIsNeverOneTooMany(t *testing.T) {
	a := newAuthority(t)
	b := serveDecisions(t, openBus(t, a, serveHere(t, a), 1))
	full := func(list []command.Decision) ([]command.Decision, error) {
		for i := range command.MaxDecisions {
			list = append(list, decision(fmt.Sprint(i), 0, capping(fmt.Sprint("job", i), time.Hour)))
		}
		return list, nil
	}
	if _, err := b.Decide(patient(t), "", full); err != nil {
		t.Fatal(err)
	}
	b.add(t, "", decision("mode", 0, off()))
}

// TestDecisionsOfAServerThatWasOff: what a server signed before it was off for days is followed by a machine that is new,
// without the next hourly refresh.
func TestDecisionsOfAServerThatWasOff(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b, before := openBus(t, a, url, 1), time.Now().Add(-3*freshFor)
	data, err := sign(b.commands.credentials, &wire.Decisions{Revision: uint64(before.UnixNano()), Signed: before.UnixMilli(), Fresh: before.Add(freshFor).UnixMilli(),
		List: wire.EncodeDecisions([]command.Decision{decision("mode", 0, off())}, nil, sample.At(before))})
	if err == nil {
		_, err = b.commands.kv.Put(patient(t), wire.DecisionsKey(""), data)
	}
	if err != nil {
		t.Fatal(err)
	}
	serveDecisions(t, b)
	m := obey(t, follower(t, a, url, "m"))
	quelltest.Until(t, "the machine follows it", m.has("mode"))
}
