package wire

import (
	"fmt"
	"strings"
)

// The subjects. An agent may publish only its own machine's samples, records and states.
// It may read specs and the decisions for its machine or for all.
const (
	AllSamples = "up.sample.*"
	AllRecords = "up.record.*"
	AllSpecs   = "spec.*.*"
	CommandAll = "command.all" // the decisions for all machines
	// AllStates are all machines' states.
	AllStates = "reply.*.state"
	// AllQuestions are all machines' questions for specs.
	AllQuestions = "reply.*.specs"
	// AllRenewals are all machines' requests for new credentials.
	AllRenewals = "renew.*"
	// Answers and a machine's token are RenewedSubject.
	Answers = "renewed."
)

// SampleSubject is the subject of a machine's batches.
func SampleSubject(machine string) string { return "up.sample." + Token(machine) }

// RecordSubject is the subject of a machine's incidents and audit entries.
func RecordSubject(machine string) string { return "up.record." + Token(machine) }

// SpecSubject is the subject that announces changes of a job's Specs on a platform.
func SpecSubject(job, platform string) string { return "spec." + SpecKey(job, platform) }

// SpecKey is the key of the same Specs in the bucket of specs.
func SpecKey(job, platform string) string { return Token(job) + "." + Token(platform) }

// CommandSubject is the subject of decisions to one machine: its own, and those for all if it
// has missed them.
func CommandSubject(machine string) string { return "command.machine." + Token(machine) }

// OwnReplies is the subject of all that one machine says in the account of commands.
func OwnReplies(machine string) string { return "reply." + Token(machine) + ".*" }

// StateSubject is the subject of a machine's state.
func StateSubject(machine string) string { return "reply." + Token(machine) + ".state" }

// QuestionSubject is the subject of a machine's questions for specs.
func QuestionSubject(machine string) string { return "reply." + Token(machine) + ".specs" }

// DecisionsKey is the key of a machine's decisions in the bucket, of those for all if machine is
// empty.
func DecisionsKey(machine string) string {
	if machine == "" {
		return "all"
	}
	return "machine." + Token(machine)
}

// RenewalSubject is the subject of a machine's requests for new credentials.
func RenewalSubject(machine string) string { return "renew." + Token(machine) }

// RenewedSubject is the subject of the answers to these, and to its questions for specs.
func RenewedSubject(machine string) string { return Answers + Token(machine) }

// Token encodes any name as one token of a subject or bucket key: letters, digits, "-"
// and "_" stay, every other byte becomes "=" and two hex digits. The encoding is
// injective; the empty name becomes "=".
func Token(name string) string {
	if name == "" {
		return "="
	}
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}
