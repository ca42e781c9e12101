package wire_test

import (
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
)

// TestAttackOneTypeReadAsAnother: the specs of a job named after a machine were read as
// that machine's empty batch with a high number, and as decisions. No type is read as
// another.
func TestAttackOneTypeReadAsAnother(t *testing.T) {
	messages := map[string][]byte{}
	for name, m := range map[string]wire.Message{
		"record": &wire.Record{Machine: "m2", Boot: "b", N: 1 << 60},
		"specs": wire.SpecsOf("m2", "the-boot-of-m2", 1<<60, []spec.Spec{{Key: spec.Key{Job: "m2", Platform: "the-boot-of-m2", Signal: sample.CPI},
			State: spec.Ready, Mean: 1}}),
		"decisions": &wire.Decisions{Machine: "m2", Revision: 1 << 60},
		"signed":    &wire.SignedDecisions{Decisions: []byte("x")},
		"renewal":   &wire.Renewal{Machine: "m2", Key: "b"},
		"renewed":   &wire.Renewed{Machine: "m2", Refused: "b"},
		"state":     &wire.State{Machine: "m2", All: 1 << 60},
		"bundle":    &wire.Bundle{Messages: [][]byte{[]byte("m2"), []byte("b")}},
	} {
		data, err := wire.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		messages[name] = data
	}
	data, err := batch(3, 1).Encode()
	if err != nil {
		t.Fatal(err)
	}
	messages["batch"] = data
	messages["acknowledgement"] = []byte(`{"stream":"samples", "seq":1}`)
	for name, data := range messages {
		for as, read := range map[string]func([]byte) error{
			"batch":     func(data []byte) error { return new(wire.Batch).Decode(data) },
			"record":    func(data []byte) error { return wire.Unmarshal(data, &wire.Record{}) },
			"specs":     func(data []byte) error { return wire.Unmarshal(data, &wire.Specs{}) },
			"decisions": func(data []byte) error { return wire.Unmarshal(data, &wire.Decisions{}) },
			"signed":    func(data []byte) error { return wire.Unmarshal(data, &wire.SignedDecisions{}) },
			"renewal":   func(data []byte) error { return wire.Unmarshal(data, &wire.Renewal{}) },
			"renewed":   func(data []byte) error { return wire.Unmarshal(data, &wire.Renewed{}) },
			"state":     func(data []byte) error { return wire.Unmarshal(data, &wire.State{}) },
			"bundle":    func(data []byte) error { return wire.Unmarshal(data, &wire.Bundle{}) },
		} {
			if err := read(data); (err == nil) != (name == as) {
				t.Errorf("%s, read as %s: %v", name, as, err)
			}
		}
	}
	var other *wire.TypeError
	if err := new(wire.Batch).Decode(messages["specs"]); !errors.As(err, &other) || other.Got != wire.Type_TYPE_SPECS {
		t.Errorf("specs as a batch: %v", err)
	}
}

// TestUpgrade: a batch and a record that an agent of version 1 left on its disk are read
// after an upgrade of the agent, and are not changed twice.
func TestUpgrade(t *testing.T) {
	text, err := os.ReadFile("testdata/v1.txt")
	if err != nil {
		t.Fatal(err)
	}
	old := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		if old[name], err = hex.DecodeString(digits); err != nil {
			t.Fatal(err)
		}
	}
	var b wire.Batch
	if err := b.Decode(old["batch"]); err == nil || !strings.Contains(err.Error(), "version 1, older than 2") {
		t.Errorf("before: %v", err)
	}
	data := wire.Upgrade(old["batch"], wire.Type_TYPE_BATCH)
	if err := b.Decode(data); err != nil || len(b.Samples) != 3 {
		t.Errorf("%d samples, %v", len(b.Samples), err)
	}
	var r wire.Record
	if err := wire.Unmarshal(wire.Upgrade(old["record"], wire.Type_TYPE_RECORD), &r); err != nil || r.Id != "i" {
		t.Errorf("record %v, %v", &r, err)
	}
	now, err := batch(1, 1).Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got := wire.Upgrade(now, wire.Type_TYPE_BATCH); &got[0] != &now[0] {
		t.Error("a message of this version was changed")
	}
}
