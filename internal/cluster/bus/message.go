package bus

import (
	"fmt"

	"github.com/quell-dev/quell/internal/format/wire"
)

// ForgedError is a message that names a machine other than the one whose credentials
// published it.
type ForgedError struct{ Subject, Machine string }

func (e *ForgedError) Error() string {
	return fmt.Sprintf("a message on %s claims to be from machine %.80q", e.Subject, e.Machine)
}

// Batch decodes a message of the stream of samples into b. b may be reused.
func (m *Message) Batch(b *wire.Batch) error {
	if err := b.Decode(m.Data); err != nil {
		return err
	}
	return m.check(wire.SampleSubject(b.Machine), b.Key)
}

// Record decodes a message of the stream of records.
func (m *Message) Record() (*wire.Record, error) {
	var r wire.Record
	if err := wire.Unmarshal(m.Data, &r); err != nil {
		return nil, err
	}
	if err := m.check(wire.RecordSubject(r.Machine), wire.Key{Machine: r.Machine, Boot: r.Boot, N: r.N}); err != nil {
		return nil, err
	}
	return &r, nil
}

// maxBoot is the longest name of an agent's run, bytes: a reader remembers each.
const maxBoot = 64

// check returns why a message's number does not count: the bus has checked only who may
// publish on its subject.
func (m *Message) check(subject string, k wire.Key) error {
	switch {
	case subject != m.Subject:
		return &ForgedError{m.Subject, k.Machine}
	case k.Boot == "" || len(k.Boot) > maxBoot:
		return fmt.Errorf("a message of machine %q names its run with %d bytes: want 1 to %d", k.Machine, len(k.Boot), maxBoot)
	case k.N == 0:
		return fmt.Errorf("a message of machine %q has no number", k.Machine)
	}
	return nil
}
