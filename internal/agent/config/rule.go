package config

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/keyed"
)

// Matcher says which cgroups are tasks of which job.
type Matcher struct {
	// Match is a pattern of cgroup paths below the hierarchy's mount: "*" is any
	// sequence of characters except "/", "**" any sequence at all, the rest is literal.
	Match string `key:"match" help:"pattern of cgroup paths: * within one name, ** across names"`
	// Job names the job; $1, $2 … are what the pattern's stars matched.
	Job       string       `key:"job" help:"job name; $1, $2 … are what the stars matched; empty: the last name of the path"`
	Class     sample.Class `key:"class" help:"latency-sensitive, batch or best-effort"`
	Protected bool         `key:"protected" help:"others may be capped for it although it is not latency-sensitive"`
	NeverCap  bool         `key:"never_cap" help:"it is never capped, and neither is a task whose cgroup contains it"`
	Ignore    bool         `key:"ignore" help:"matching cgroups are not tasks"`
	Signals   []string     `key:"signals" help:"judge it by these signals only; empty: by all" oneof:"cpi cpt cps runq io net"`
	Progress  string       `key:"progress" help:"progress file as the task sees it; empty: QUELL_PROGRESS of its environment"`
	// Prometheus or Uprobe count its transactions instead.
	Prometheus *Prometheus `key:"prometheus" help:"cpt counts transactions with a counter of the task itself"`
	Uprobe     *Uprobe     `key:"uprobe" help:"cpt counts how often an instruction of the task's program is executed"`

	pattern *regexp.Regexp
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

func defaultMatchers() (all []Matcher) {
	var r keyed.Reader
	if err := r.Document(&all, []byte(defaultRules)); err != nil || len(r.Problems) > 0 {
		panic(fmt.Sprintf("rules.yaml: %v %v", err, r.Problems))
	}
	return all
}

// compile converts the pattern to a regular expression.
func (r *Matcher) compile() error {
	if !strings.HasPrefix(r.Match, "/") {
		return fmt.Errorf("pattern %q does not begin with /", r.Match)
	}
	var err error
	r.pattern, err = regexp.Compile("^" + stars.Replace(regexp.QuoteMeta(r.Match)) + "$")
	return err
}

// stars converts the stars of a quoted pattern.
var stars = strings.NewReplacer(`\*\*`, "(.*)", `\*`, "([^/]*)")

func (r *Matcher) validate(key string) []Problem {
	ps := keyed.Check(key+".", r)
	if err := r.compile(); err != nil {
		return append(ps, Problem{Key: key + ".match", Value: fmt.Sprintf("%q", r.Match), Want: "a cgroup path pattern that begins with /"})
	}
	for _, ref := range jobRef.FindAllStringSubmatch(r.Job, -1) {
		if int(ref[1][0]-'0') > r.pattern.NumSubexp() || ref[1] == "0" {
			ps = append(ps, Problem{Key: key + ".job", Value: fmt.Sprintf("%q", r.Job),
				Want: fmt.Sprintf("$N with N from 1 to the number of stars in match, %d", r.pattern.NumSubexp())})
		}
	}
	return append(ps, r.transactions(key)...)
}

var jobRef = regexp.MustCompile(`\$([0-9])`)

// Classify finds the first rule that matches a cgroup path and the job's name under it;
// nil if no rule makes it a task. Call it after Load or Validate, which compile the
// patterns. A cgroup's name may be any bytes; a job's name is UTF-8, because it becomes
// a label of metrics and a key in JSON.
func (a *Agent) Classify(path string) (*Matcher, sample.JobName) {
	r, job := a.match(path)
	return r, sample.JobName(strings.ToValidUTF8(job, "\uFFFD"))
}

func (a *Agent) match(path string) (*Matcher, string) {
	for i := range a.Rules {
		r := &a.Rules[i]
		if r.pattern == nil {
			continue
		}
		m := r.pattern.FindStringSubmatch(path)
		switch {
		case m == nil:
			continue
		case r.Ignore:
			return nil, ""
		case r.Job == "":
			return r, path[strings.LastIndexByte(path, '/')+1:]
		}
		return r, jobRef.ReplaceAllStringFunc(r.Job, func(ref string) string {
			if n := int(ref[1] - '0'); n < len(m) {
				return m[n]
			}
			return ""
		})
	}
	return nil, ""
}
