package wire

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Version is the only version of the messages that this side writes and reads. Messages
// of version 1 have no type.
const Version = 2

// VersionError means that this side does not read a message of that version.
type VersionError struct{ Got uint32 }

func (e *VersionError) Error() string {
	switch {
	case e.Got == 0:
		return "the message has no version: it is not a message of quell"
	case e.Got < Version:
		return fmt.Sprintf("the message has version %d, older than %d: upgrade its sender", e.Got, Version)
	}
	return fmt.Sprintf("the message has version %d, newer than %d: upgrade this side", e.Got, Version)
}

// TypeError means that a message is of another type than was expected in its place.
type TypeError struct{ Got, Want Type }

func (e *TypeError) Error() string {
	return fmt.Sprintf("the message is of %s, want %s", e.Got, e.Want)
}

// Message is any message that is sent by itself.
type Message interface {
	proto.Message
	GetVersion() uint32
	GetType() Type
}

// The field numbers that all messages share.
const (
	versionField = 1
	typeField    = 30
)

// typeOf is the type that a message must state.
func typeOf(m Message) Type {
	switch m.(type) {
	case *Columns:
		return Type_TYPE_BATCH
	case *Record:
		return Type_TYPE_RECORD
	case *Specs:
		return Type_TYPE_SPECS
	case *Renewal:
		return Type_TYPE_RENEWAL
	case *Renewed:
		return Type_TYPE_RENEWED
	case *SignedDecisions:
		return Type_TYPE_SIGNED_DECISIONS
	case *Decisions:
		return Type_TYPE_DECISIONS
	case *State:
		return Type_TYPE_STATE
	case *Bundle:
		return Type_TYPE_BUNDLE
	}
	return Type_TYPE_UNSPECIFIED
}

// check returns why a message with that version and type is not read as one of type want.
func check(version uint32, got, want Type) error {
	switch {
	case version != Version:
		return &VersionError{version}
	case got != want || want == Type_TYPE_UNSPECIFIED:
		return &TypeError{got, want}
	}
	return nil
}

// Marshal encodes a message with its type and this version.
func Marshal(m Message) ([]byte, error) {
	r := m.ProtoReflect()
	fields := r.Descriptor().Fields()
	r.Set(fields.ByNumber(versionField), protoreflect.ValueOfUint32(Version))
	r.Set(fields.ByNumber(typeField), protoreflect.ValueOfEnum(typeOf(m).Number()))
	data, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", r.Descriptor().Name(), err)
	}
	return data, nil
}

// Unmarshal decodes a message of the type of m. Unknown fields are kept, and are included
// when the message is encoded again.
func Unmarshal(data []byte, m Message) error {
	err := proto.Unmarshal(data, m)
	if err == nil {
		err = check(m.GetVersion(), m.GetType(), typeOf(m))
	}
	if err != nil {
		return fmt.Errorf("decode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}

// Upgrade returns a message that this agent wrote to its disk, as one of this version: an
// agent of version 1 may have left some. The type is that of all messages in its place.
func Upgrade(data []byte, of Type) []byte {
	first := protowire.AppendTag(nil, versionField, protowire.VarintType)
	if !bytes.HasPrefix(data, append(first, 1)) {
		return data
	}
	// The last value of a field is its value.
	data = append(bytes.Clone(data), append(first, Version)...)
	return protowire.AppendVarint(protowire.AppendTag(data, typeField, protowire.VarintType), uint64(of))
}
