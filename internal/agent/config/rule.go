package config

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/keyed"
)

// Matcher says which cgroups are tasks of which job.
type Matcher struct {
	// Match is a pattern of cgroup paths below the hierarchy's mount, or, without "/" in front, of
	// the names that runtimes give tasks (origin.Facts.Name): "*" is any sequence of characters
	// except "/", "**" any sequence at all, the rest is literal.
	Match string `key:"match" help:"pattern of cgroup paths, or without / in front of task names: * within one name, ** across names"`
	// Command is a pattern of the arguments of the oldest process, joined by spaces; "*" is any
	// sequence of characters.
	Command string `key:"command" help:"only if the arguments of the oldest process match: * is any sequence of characters"`
	// Job names the job; $1, $2 … are what the pattern's stars matched, $namespace and so on are
	// the task's labels.
	Job   string       `key:"job" help:"job name; $1, $2 … are what the stars matched, $namespace, $workload, $pod, $container, $image, $unit and $vm what is known; empty: as the runtime says, else the last name of the path"`
	Class sample.Class `key:"class" help:"latency-sensitive, batch or best-effort"`
	// Propose: see Verdict.propose.
	Propose   bool     `key:"propose" help:"propose the class from what is known of the task; class is for tasks of which nothing is known"`
	Protected bool     `key:"protected" help:"others may be capped for it although it is not latency-sensitive"`
	NeverCap  bool     `key:"never_cap" help:"it is never capped, and neither is a task whose cgroup contains it"`
	Ignore    bool     `key:"ignore" help:"matching cgroups are not tasks"`
	Signals   []string `key:"signals" help:"judge it by these signals only; empty: by all" oneof:"cpi cpt cps runq io net"`
	Progress  string   `key:"progress" help:"progress file as the task sees it; empty: QUELL_PROGRESS of its environment"`
	// Prometheus or Uprobe count its transactions instead.
	Prometheus *Prometheus `key:"prometheus" help:"cpt counts transactions with a counter of the task itself"`
	Uprobe     *Uprobe     `key:"uprobe" help:"cpt counts how often an instruction of the task's program is executed"`

	pattern, command *regexp.Regexp
}

// Missing says that a task's class must be given: the zero Class is the one that is
// capped hardest, and no task may get it by omission.
func (r *Matcher) Missing(seen map[string]bool) []string {
	if seen["class"] || r.Ignore {
		return nil
	}
	return []string{"class"}
}

//go:embed rules.yaml
var defaultRules string

// DefaultRules is the default of the key rules, as YAML with comments.
func DefaultRules() string { return defaultRules }

func defaultMatchers() (all []Matcher) {
	var r keyed.Reader
	if err := r.Document(&all, []byte(defaultRules)); err != nil || len(r.Problems) > 0 {
		panic(fmt.Sprintf("rules.yaml: %v %v", err, r.Problems))
	}
	return all
}

// ofNames reports whether it matches the names of tasks and not paths.
func (r *Matcher) ofNames() bool { return !strings.HasPrefix(r.Match, "/") }

// compile converts the patterns to regular expressions.
func (r *Matcher) compile() error {
	if r.Match == "" {
		return errors.New("empty pattern")
	}
	var err error
	if r.pattern, err = regexp.Compile("^" + stars.Replace(regexp.QuoteMeta(r.Match)) + "$"); err != nil {
		return err
	}
	if r.Command != "" {
		r.command, err = regexp.Compile("(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(r.Command), `\*`, ".*") + "$")
	}
	return err
}

// stars converts the stars of a quoted pattern.
var stars = strings.NewReplacer(`\*\*`, "(.*)", `\*`, "([^/]*)")

func (r *Matcher) validate(key string) []Problem {
	ps := keyed.Check(key+".", r)
	if err := r.compile(); err != nil {
		return append(ps, Problem{Key: key + ".match", Value: fmt.Sprintf("%q", r.Match), Want: "a pattern of cgroup paths, which begins with /, or of task names"})
	}
	for _, ref := range jobRef.FindAllStringSubmatch(r.Job, -1) {
		switch n, err := strconv.Atoi(ref[1]); {
		case err != nil && !slices.Contains(jobLabels, ref[1]):
			ps = append(ps, Problem{Key: key + ".job", Value: fmt.Sprintf("%q", r.Job), Want: "$N or $ with one of " + strings.Join(jobLabels, ", ")})
		case err == nil && (n > r.pattern.NumSubexp() || n == 0):
			ps = append(ps, Problem{Key: key + ".job", Value: fmt.Sprintf("%q", r.Job),
				Want: fmt.Sprintf("$N with N from 1 to the number of stars in match, %d", r.pattern.NumSubexp())})
		}
	}
	return append(ps, r.transactions(key)...)
}

// jobRef is a reference in a job's name, and jobLabels the labels that it may name.
var (
	jobRef    = regexp.MustCompile(`\$([0-9]|[a-z]+)`)
	jobLabels = []string{"namespace", "workload", "pod", "container", "image", "unit", "vm"}
)
