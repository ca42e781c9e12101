package bus

import (
	"fmt"

	"github.com/quell-dev/quell/internal/format/wire"
)

// ForgedError is a message that names a machine other than the one whose credentials
// published it.
type ForgedError struct{ Subject, Machine string }

func (e *ForgedError) Error() string {
	return fmt.Sprintf("a message on %s claims to be from machine %q: dropped", e.Subject, e.Machine)
}

// Batch decodes a message of the stream of samples into b. b may be reused.
func (m *Message) Batch(b *wire.Batch) error {
	if err := b.Decode(m.Data); err != nil {
		return err
	}
	if wire.SampleSubject(b.Machine) != m.Subject {
		return &ForgedError{m.Subject, b.Machine}
	}
	return nil
}

// Record decodes a message of the stream of records.
func (m *Message) Record() (*wire.Record, error) {
	var r wire.Record
	if err := wire.Unmarshal(m.Data, &r); err != nil {
		return nil, err
	}
	if wire.RecordSubject(r.Machine) != m.Subject {
		return nil, &ForgedError{m.Subject, r.Machine}
	}
	return &r, nil
}
