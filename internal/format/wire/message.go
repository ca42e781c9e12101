package wire

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Version is the version of the messages that this side writes and the newest that it
// reads.
const Version = 1

// VersionError means that this side does not read a message of that version.
type VersionError struct{ Got uint32 }

func (e *VersionError) Error() string {
	if e.Got == 0 {
		return "the message has no version: it is not a message of quell"
	}
	return fmt.Sprintf("the message has version %d, newer than %d: upgrade this side", e.Got, Version)
}

// Message is any message that is sent by itself.
type Message interface {
	proto.Message
	GetVersion() uint32
}

// Marshal encodes a message with this version.
func Marshal(m Message) ([]byte, error) {
	r := m.ProtoReflect()
	r.Set(r.Descriptor().Fields().ByNumber(1), protoreflect.ValueOfUint32(Version))
	data, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", r.Descriptor().Name(), err)
	}
	return data, nil
}

// Unmarshal decodes a message. Unknown fields are kept, and are included when the message
// is encoded again.
func Unmarshal(data []byte, m Message) error {
	err := proto.Unmarshal(data, m)
	if v := m.GetVersion(); err == nil && (v == 0 || v > Version) {
		err = &VersionError{v}
	}
	if err != nil {
		return fmt.Errorf("decode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}
