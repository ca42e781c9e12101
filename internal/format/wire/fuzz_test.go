package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// FuzzMessages: whatever arrives on a subject of any message but batches (FuzzBatch), it is refused
// or understood in one way: encoded again, it says the same. A valid command stays the same command.
func FuzzMessages(f *testing.F) {
	all := func() []Message { return []Message{&Record{}, &Specs{}, &Command{}, &Reply{}} }
	seed := func(m Message) {
		data, err := Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	seed(&Record{Machine: "m1", Boot: "b", N: 1, At: 5, Kind: Record_KIND_INCIDENT, Id: "i", Json: []byte("{}")})
	seed(SpecsOf("web", "p", 7, []spec.Spec{{Key: spec.Key{Job: "web", Platform: "p", Signal: sample.CPI}, State: spec.Ready, Mean: 1}}))
	seed(EncodeCommand(&command.Command{Why: "r", Cap: &command.Cap{Target: command.Target{Task: `"/a\xff"`}, Terms: command.Terms{Rate: 1, For: 1e9}}}))
	seed(EncodeCommand(&command.Command{Why: "r", Protect: &command.Target{All: true}}))
	seed(&Reply{Machine: "m1", Ok: true, Message: "done", Refused: []string{"/b"}})
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
			case *Command:
				c, err := DecodeCommand(m)
				if err != nil || c.Validate() != nil {
					continue
				}
				same, err := DecodeCommand(EncodeCommand(c))
				if err != nil || same.String() != c.String() || same.Validate() != nil {
					t.Errorf("%x: %s, then %s, %v", data, c, same, err)
				}
			}
		}
	})
}

// hasNaN reports whether a message has a number that is not equal to itself.
func hasNaN(m Message) bool { return !proto.Equal(m, proto.Clone(m)) }
