package command

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Command is one instruction with its reason. Exactly one of the fields after Why is set.
type Command struct {
	// Why is the reason, for the audit log: not blank, at most MaxWhy bytes.
	Why         string       `json:"why"`
	Cap         *Cap         `json:"cap,omitempty"`
	Uncap       *Target      `json:"uncap,omitempty"`
	Protect     *Target      `json:"protect,omitempty"`   // others may be capped for these
	Unprotect   *Target      `json:"unprotect,omitempty"` // no task may be capped for these
	Enforcement *Enforcement `json:"enforcement,omitempty"`
	Pardon      *Pardon      `json:"pardon,omitempty"`
	Reset       *Reset       `json:"reset,omitempty"`
	// For is how long a protection, its end, or a mode lasts, MinLease to MaxFor; 0: until it
	// is reset. Caps have a duration of their own.
	For Duration `json:"for,omitempty"`
}

// Cap limits each of the tasks to a CPU rate for a time.
type Cap struct {
	Target
	Terms
	// Incident is the ID of the open incident whose victim the cap is to help: the cap is a
	// round of it and is judged by that victim's cost. "": the cap belongs to no incident and
	// is judged for none. Only a single task's cap names one.
	Incident string `json:"incident,omitempty"`
}

// CapTask returns the command that limits one task to a rate in CPU-s/s.
func CapTask(task string, rate float64, lease time.Duration, why string) Command {
	return Command{Why: why, Cap: &Cap{Target: Target{Task: task}, Terms: Terms{rate, Duration(lease)}}}
}

// Enforcement sets how far the agent may act by itself.
type Enforcement struct {
	Mode string `json:"mode"` // as ParseMode reads it
}

// Reset takes back what was commanded before, so that the configuration holds again.
// Exactly one of the fields is set.
type Reset struct {
	Enforcement bool    `json:"enforcement,omitempty"` // the mode
	Protect     *Target `json:"protect,omitempty"`     // a protection of this target, or its end
	Decision    string  `json:"decision,omitempty"`    // one Decision, by its ID
}

// String is for people: "enforcement", "protect job web".
func (r *Reset) String() string {
	_, texts := r.set()
	return strings.Join(texts, " and ")
}

func (r *Reset) set() (names, texts []string) {
	if r.Enforcement {
		names, texts = append(names, "enforcement"), append(texts, "enforcement")
	}
	if r.Protect != nil {
		names, texts = append(names, "protect"), append(texts, "protect "+r.Protect.String())
	}
	if r.Decision != "" {
		names, texts = append(names, "decision"), append(texts, "decision "+r.Decision)
	}
	return names, texts
}

// Pardon makes the agent forget that caps on a job helped others.
type Pardon struct {
	Job string `json:"job"`
}

// The longest texts, in bytes.
const (
	MaxName = 4096 // a task or job; a task is named by a path (PATH_MAX)
	MaxWhy  = 1024
)

// kinds are the fields after Why that may be set, in their order.
var kinds = [...]string{"cap", "uncap", "protect", "unprotect", "enforcement", "pardon", "reset"}

// kindsSet lists the kinds that are set.
func (c *Command) kindsSet() (names []string) {
	for i, set := range [...]bool{c.Cap != nil, c.Uncap != nil, c.Protect != nil, c.Unprotect != nil, c.Enforcement != nil, c.Pardon != nil, c.Reset != nil} {
		if set {
			names = append(names, kinds[i])
		}
	}
	return names
}

// Kind is the command's name, as in JSON; "" unless exactly one kind is set.
func (c *Command) Kind() string {
	if names := c.kindsSet(); len(names) == 1 {
		return names[0]
	}
	return ""
}

// Object is what the command applies to, for people: tasks, a mode, or a job.
func (c *Command) Object() string {
	switch {
	case c.Cap != nil:
		return c.Cap.Target.String()
	case c.Uncap != nil:
		return c.Uncap.String()
	case c.Protect != nil:
		return c.Protect.String()
	case c.Unprotect != nil:
		return c.Unprotect.String()
	case c.Enforcement != nil:
		return c.Enforcement.Mode
	case c.Pardon != nil:
		return Target{Job: c.Pardon.Job}.String()
	case c.Reset != nil:
		return c.Reset.String()
	}
	return ""
}

// String is the command for people and audit logs, without the reason:
// "cap job web to 0.5 CPU-s/s for 5m".
func (c *Command) String() string {
	text := c.Kind() + " " + c.Object()
	if c.Cap != nil {
		text += " " + c.Cap.Terms.String()
		if c.Cap.Incident != "" {
			text += " in " + c.Cap.Incident
		}
	}
	if c.For != 0 {
		text += " for " + c.For.String()
	}
	return text
}

// InvalidError is why a command is refused at every entry point, on any machine.
type InvalidError struct {
	Problems []string // each names the field, its value, and what is allowed
}

func (e *InvalidError) Error() string { return strings.Join(e.Problems, "; ") }

// Invalid returns an error with these problems, nil if there are none.
func Invalid(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return &InvalidError{problems}
}

// Validate returns an *InvalidError with all that is wrong with the command.
func (c *Command) Validate() error { return Invalid(c.Problems()) }

// Problems lists all that is wrong with the command.
func (c *Command) Problems() []string {
	var bad []string
	if names := c.kindsSet(); len(names) != 1 {
		bad = append(bad, oneOf(kinds[:], names))
	}
	target := func(kind string, t *Target) {
		if t != nil {
			bad = append(bad, t.problems(kind)...)
		}
	}
	if c.Cap != nil {
		target("cap", &c.Cap.Target)
		bad = append(bad, c.Cap.Terms.problems()...)
		bad = append(bad, TextProblems("incident", c.Cap.Incident, MaxName)...)
		if c.Cap.Incident != "" && c.Cap.IsGroup() {
			bad = append(bad, "incident: want a task with it, by its name")
		}
	}
	target("uncap", c.Uncap)
	target("protect", c.Protect)
	target("unprotect", c.Unprotect)
	if c.Enforcement != nil {
		if _, err := ParseMode(c.Enforcement.Mode); err != nil {
			bad = append(bad, err.Error())
		}
	}
	if c.Pardon != nil {
		if c.Pardon.Job == "" {
			bad = append(bad, "pardon: want a job")
		}
		bad = append(bad, TextProblems("job", c.Pardon.Job, MaxName)...)
	}
	if c.Reset != nil {
		if names, _ := c.Reset.set(); len(names) != 1 {
			bad = append(bad, "reset: "+oneOf(resets[:], names))
		}
		target("reset", c.Reset.Protect)
		bad = append(bad, TextProblems("decision", c.Reset.Decision, MaxName)...)
	}
	bad = append(bad, c.forProblems()...)
	return append(bad, whyProblems(c.Why)...)
}

// resets are the fields of a Reset.
var resets = [...]string{"enforcement", "protect", "decision"}

func (c *Command) forProblems() []string {
	switch d := time.Duration(c.For); {
	case d == 0:
	case c.Enforcement == nil && c.Protect == nil && c.Unprotect == nil:
		return []string{"for " + c.For.String() + ": want it only with protect, unprotect or enforcement; a cap has its own"}
	case d < MinLease || d > MaxFor:
		return []string{"for " + c.For.String() + ": want a duration from 1s to 8760h"}
	}
	return nil
}

// ValidateWhy is the part of Validate that checks the reason.
func ValidateWhy(why string) error { return Invalid(whyProblems(why)) }

func whyProblems(why string) []string {
	if strings.TrimSpace(why) == "" {
		return []string{"why is empty: want a reason, for the audit log"}
	}
	return TextProblems("why", why, MaxWhy)
}

// TextProblems says what is wrong with a text from an operator, of at most so many bytes.
func TextProblems(field, s string, longest int) []string {
	switch {
	case len(s) > longest:
		return []string{fmt.Sprintf("%s has %d bytes: want at most %d", field, len(s), longest)}
	case !utf8.ValidString(s):
		return []string{fmt.Sprintf("%s %.40q: want UTF-8", field, s)}
	}
	return nil
}

func oneOf(all, got []string) string {
	what := "none"
	if len(got) > 0 {
		what = strings.Join(got, " and ")
	}
	return fmt.Sprintf("want one of %s; got %s", strings.Join(all, ", "), what)
}

// Target names tasks: one by its name, or all that have something in common.
// Exactly one of the fields is set.
type Target struct {
	Task  string `json:"task,omitempty"` // the text form of its name (sample.TaskName), or of a suffix that no other task has
	Job   string `json:"job,omitempty"`
	Class string `json:"class,omitempty"` // as sample.ParseClass reads it
	All   bool   `json:"all,omitempty"`
}

// targets are the fields of a Target, the most specific first.
var targets = [...]string{"task", "job", "class", "all"}

// set lists the fields that are set, by their names and for people.
func (t Target) set() (names, texts []string) {
	texts = []string{t.Task, "job " + t.Job, "class " + t.Class, "all tasks"}
	for i, set := range [...]bool{t.Task != "", t.Job != "", t.Class != "", t.All} {
		if set {
			names = append(names, targets[i])
			texts[len(names)-1] = texts[i]
		}
	}
	return names, texts[:len(names)]
}

// Rank is how specific a valid target is: 4 for a single task, 1 for all.
func (t Target) Rank() int {
	names, _ := t.set()
	return len(targets) - slices.Index(targets[:], names[0])
}

// IsGroup reports whether it names tasks by a common property.
func (t Target) IsGroup() bool { return t.Task == "" }

// String is for people: "/a/b", "job web", "class batch", "all tasks". For a target that
// is not valid it lists everything that is set.
func (t Target) String() string {
	_, texts := t.set()
	return strings.Join(texts, " and ")
}

// Matches reports whether a valid target names the task. A single task must be named by
// its whole name or cgroup path.
func (t Target) Matches(k *sample.Task) bool {
	switch {
	case t.Task != "":
		name, err := sample.ParseName(t.Task)
		return err == nil && (string(k.Name) == name || k.Path() == name)
	case t.Job != "":
		return string(k.Job) == t.Job
	case t.Class != "":
		return k.Class.String() == t.Class
	}
	return t.All
}

func (t Target) problems(kind string) (bad []string) {
	if got, _ := t.set(); len(got) != 1 {
		bad = append(bad, kind+": "+oneOf(targets[:], got))
	}
	switch name, err := sample.ParseName(t.Task); {
	case err != nil:
		bad = append(bad, "task: "+err.Error())
	case len(name) > MaxName: // its text form may be longer
		bad = append(bad, TextProblems("task", name, MaxName)...)
	default:
		bad = append(bad, TextProblems("task", t.Task, len(t.Task))...)
	}
	bad = append(bad, TextProblems("job", t.Job, MaxName)...)
	if t.Class != "" {
		if _, err := sample.ParseClass(t.Class); err != nil {
			bad = append(bad, fmt.Sprintf("class %.40q: want %s, %s or %s", t.Class, sample.LatencySensitive, sample.Batch, sample.BestEffort))
		}
	}
	return bad
}
