package bus

import (
	"errors"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
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
