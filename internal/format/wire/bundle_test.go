package wire_test

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quell-dev/quell/internal/format/wire"
)

func unpack(data []byte) []string {
	var all []string
	for m := range wire.Unpack(data) {
		all = append(all, string(m))
	}
	return all
}

// TestBundle: several messages come back in order, and the encoding is the one of wire.proto. One
// message stays as it is. What is damaged is one message, which no reader takes for a batch.
func TestBundle(t *testing.T) {
	if got := unpack(wire.Pack([]byte("one"))); !slices.Equal(got, []string{"one"}) {
		t.Errorf("one message: %q", got)
	}
	data := wire.Pack([]byte("one"), nil, bytes.Repeat([]byte("x"), 300))
	want := []string{"one", "", string(bytes.Repeat([]byte("x"), 300))}
	if got := unpack(data); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	var m wire.Bundle
	if err := wire.Unmarshal(data, &m); err != nil || len(m.Messages) != 3 || string(m.Messages[0]) != "one" {
		t.Errorf("%v, %v", &m, err)
	}
	size := len(wire.Pack(nil, nil)) - 2*wire.PackedSize(nil)
	for _, s := range want {
		size += wire.PackedSize([]byte(s))
	}
	if size != len(data) {
		t.Errorf("sizes add up to %d, it has %d", size, len(data))
	}
	// A newer sender's field is ignored.
	newer := protowire.AppendVarint(protowire.AppendTag(bytes.Clone(data), 7, protowire.VarintType), 1)
	if got := unpack(newer); !slices.Equal(got, want) {
		t.Errorf("with another field: %q", got)
	}
	none, err := proto.Marshal(&wire.Bundle{Version: wire.Version, Type: wire.Type_TYPE_BUNDLE})
	if err != nil {
		t.Fatal(err)
	}
	many := make([][]byte, 8*wire.MaxPacked+1)
	if got := unpack(wire.Pack(many[1:]...)); len(got) != len(many)-1 { // of an earlier version
		t.Errorf("%d of %d messages", len(got), len(many)-1)
	}
	for name, bad := range map[string][]byte{"cut": data[:len(data)-1], "no messages": none, "too many": wire.Pack(many...),
		"another type": protowire.AppendVarint(protowire.AppendTag(bytes.Clone(data[:5]), 2, protowire.VarintType), 1)} {
		if got := unpack(bad); len(got) != 1 || got[0] != string(bad) {
			t.Errorf("%s: %d messages", name, len(got))
		}
		if err := new(wire.Batch).Decode(bad); err == nil {
			t.Errorf("%s is read as a batch", name)
		}
	}
}
