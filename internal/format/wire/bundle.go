package wire

import (
	"bytes"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
)

// bundled are the first fields of a Bundle, by which a reader knows it: its version and type.
const bundled = "\x08\x02\xf0\x01\x0c"

// MaxPacked is how many messages a sender puts into a bundle, and maxBundled how many a reader takes: senders
// of earlier versions had no bound but the size.
const (
	MaxPacked  = 1024
	maxBundled = 8 * MaxPacked
)

// messagesField is Bundle's field of messages.
const messagesField = 2

// Pack returns a Bundle of messages, at most MaxPacked; a single one stays as it is.
func Pack(messages ...[]byte) []byte {
	if len(messages) == 1 {
		return messages[0]
	}
	size := len(bundled)
	for _, m := range messages {
		size += PackedSize(m)
	}
	b := append(make([]byte, 0, size), bundled...)
	for _, m := range messages {
		b = protowire.AppendBytes(protowire.AppendTag(b, messagesField, protowire.BytesType), m)
	}
	return b
}

// PackedSize is how many bytes a message takes in a bundle.
func PackedSize(m []byte) int { return protowire.SizeTag(messagesField) + protowire.SizeBytes(len(m)) }

// Unpack returns the messages of a bundle, which are parts of it. A message that is no bundle,
// or a damaged one, is returned as it is: nothing else can be read from it.
func Unpack(data []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if !whole(data) {
			yield(data)
			return
		}
		for rest := data[len(bundled):]; len(rest) > 0; {
			num, typ, n := protowire.ConsumeTag(rest)
			size := protowire.ConsumeFieldValue(num, typ, rest[n:])
			if num == messagesField {
				m, _ := protowire.ConsumeBytes(rest[n:])
				if !yield(m) {
					return
				}
			}
			rest = rest[n+size:]
		}
	}
}

// whole reports whether data is a bundle with messages, all of which can be read.
func whole(data []byte) bool {
	rest, is := bytes.CutPrefix(data, []byte(bundled))
	messages := 0
	for is && len(rest) > 0 {
		num, typ, n := protowire.ConsumeField(rest)
		if n < 0 || num == messagesField && typ != protowire.BytesType {
			return false
		}
		if num == messagesField {
			messages++
		}
		rest = rest[n:]
	}
	return is && messages > 0 && messages <= maxBundled
}
