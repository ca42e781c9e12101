package wire

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// FuzzMessages: whatever arrives on a subject of any message but batches (FuzzBatch), it is refused
// or understood in one way: encoded again, it says the same. A valid command stays the same command.
func FuzzMessages(f *testing.F) {
	all := func() []Message { return []Message{&Record{}, &Specs{}, &SignedDecisions{}, &Decisions{}, &State{}} }
	seed := func(m Message) {
		data, err := Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	seed(&Record{Machine: "m1", Boot: "b", N: 1, At: 5, Kind: Record_KIND_INCIDENT, Id: "i", Json: []byte("{}")})
	seed(SpecsOf("web", "p", 7, []spec.Spec{{Key: spec.Key{Job: "web", Platform: "p", Signal: sample.CPI}, State: spec.Ready, Mean: 1}}))
	cap := command.Decide("a", "anna", 7, command.Command{Why: "r", Cap: &command.Cap{Target: command.Target{Task: `"/a\xff"`}, Terms: command.Terms{Rate: 1, For: 1e9}}})
	protect := command.Decide("b", "anna", 7, command.Command{Why: "r", Protect: &command.Target{All: true}})
	protect.Rollout = &command.Rollout{Step: 1, Since: 3, Every: 1e9, Below: 5}
	seed(&Decisions{Machine: "m1", Revision: 1, Signed: 2, Fresh: 3, List: []*Command{EncodeDecision(&cap), EncodeDecision(&protect)}})
	seed(&SignedDecisions{Decisions: []byte("x"), Signer: "y", Signature: []byte("z")})
	seed(&State{Machine: "m1", All: 1, Outcomes: []*Reply{{Id: "a", Ok: true, Message: "done", Refused: []string{"/b"}}}})
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, m := range all() {
			if Unmarshal(data, m) != nil {
				continue
			}
			again, err := Marshal(m)
			if err != nil {
				t.Fatalf("%x: understood and not encoded: %v", data, err)
			}
			back := m.ProtoReflect().New().Interface().(Message)
			if err := Unmarshal(again, back); err != nil || !proto.Equal(m, back) && !hasNaN(m) {
				t.Fatalf("%x: %v\nthen %v, %v", data, m, back, err)
			}
			switch m := m.(type) {
			case *Specs:
				for _, s := range m.List() {
					_ = s.State.String() // a state that exists
				}
			case *Decisions:
				for _, one := range m.List {
					c, err := DecodeDecision(one)
					if err != nil || c.Validate() != nil {
						continue
					}
					same, err := DecodeDecision(EncodeDecision(&c))
					if err != nil || same.String() != c.String() || same.Validate() != nil {
						t.Errorf("%x: %s, then %s, %v", data, c.String(), same.String(), err)
					}
				}
			}
		}
	})
}

// hasNaN reports whether a message has a number that is not equal to itself.
func hasNaN(m Message) bool { return !proto.Equal(m, proto.Clone(m)) }

// FuzzBundle: whatever arrives is some messages, which are the same after they were packed again.
func FuzzBundle(f *testing.F) {
	f.Add([]byte("x"))
	f.Add(Pack([]byte("a"), nil, []byte("b")))
	f.Add(Pack(Pack([]byte("a"), []byte("b")), []byte("c")))
	f.Fuzz(func(t *testing.T, data []byte) {
		all := slices.Collect(Unpack(data))
		if len(all) == 0 || len(all) > maxBundled {
			t.Fatalf("%x: %d messages", data, len(all))
		}
		if len(all) == 1 { // perhaps a bundle itself, which is not opened twice
			return
		}
		if again := slices.Collect(Unpack(Pack(all...))); !slices.EqualFunc(all, again, bytes.Equal) {
			t.Errorf("%x: %x, then %x", data, all, again)
		}
	})
}
