package config

import (
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/origin"
)

// Verdict is what the rules make of a cgroup. Without a Rule it is no task.
type Verdict struct {
	Rule *Matcher
	Name sample.TaskName // "" if only its path names it
	Job  sample.JobName
	// The class and how it may be treated: as the rule says, or as is proposed.
	Class               sample.Class
	Protected, NeverCap bool
	Proposed            bool
	Why                 string // the reason for the class, for people
	Dismissed           bool   // it is no task, whatever its processes are called
}

// MayBeTask reports whether the rules can make a cgroup a task, and whether that, its name or its
// class depends on more than its path. known says whether its path tells where it comes from.
func (a *Agent) MayBeTask(path string, known bool) (may, ask bool) {
	for i := range a.Rules {
		r := &a.Rules[i]
		switch {
		case r.ofNames():
			may = may || known && !r.Ignore
		case r.pattern == nil || !r.pattern.MatchString(path):
		case r.Command != "":
			may, ask = may || !r.Ignore, true
		case r.Ignore:
			return may, ask || known
		default:
			return true, ask || known || r.Propose
		}
	}
	return may, ask || known
}

// Classify finds the first rule that matches a cgroup's path or name. f is what is known of it; nil
// for nothing. Call it after Load or Validate, which compile the patterns. A cgroup's name may be
// any bytes; a job's name is UTF-8, because it becomes a label of metrics and a key in JSON.
func (a *Agent) Classify(path string, f *origin.Facts) (v Verdict) {
	if f == nil {
		f = &origin.Facts{}
	}
	if f.Sandbox || f.Helper {
		return Verdict{Dismissed: true}
	}
	for i := range a.Rules {
		r := &a.Rules[i]
		m := r.find(path, f)
		switch {
		case m == nil:
			continue
		case r.Ignore:
			return Verdict{Dismissed: r.Command == ""}
		}
		v = Verdict{Rule: r, Name: sample.TaskName(f.Name), Class: r.Class, Protected: r.Protected, NeverCap: r.NeverCap, Why: "rule " + r.Match}
		job := strings.ToValidUTF8(r.job(path, m, f, a.Names.Annotations), "\uFFFD")
		v.Job = sample.JobName(strings.ToValidUTF8(job[:min(len(job), longestJob)], ""))
		if r.Propose {
			v.propose(path, f, a.Names.Annotations)
		}
		return v
	}
	return Verdict{}
}

// longestJob bounds a job's name, in bytes. An annotation may have any length, and a server refuses the
// samples of a whole machine in which one name has more than 4096.
const longestJob = 1024

// find returns what the pattern's stars match, after the whole; nil if the rule does not apply.
func (r *Matcher) find(path string, f *origin.Facts) []string {
	text := path
	if r.ofNames() {
		text = f.Name
	}
	if r.pattern == nil || text == "" || r.command != nil && !r.command.MatchString(f.Process.Command) {
		return nil
	}
	return r.pattern.FindStringSubmatch(text)
}

// job is the name of the task's job. A rule that refers to a label that the task lacks names none.
func (r *Matcher) job(path string, m []string, f *origin.Facts, annotations bool) string {
	lacks := r.Job == ""
	job := jobRef.ReplaceAllStringFunc(r.Job, func(ref string) string {
		if n := ref[1] - '0'; n <= 9 {
			if int(n) < len(m) {
				return m[n]
			}
			return ""
		}
		label := f.Labels[ref[1:]]
		lacks = lacks || label == ""
		return label
	})
	switch own := f.Annotations[origin.Annotation+"job"]; {
	case !lacks:
		return job
	case annotations && own != "": // within what it belongs to: it cannot take the job of another
		above, _, _ := strings.Cut(f.Job, "/")
		return above + "/" + own
	case f.Job != "":
		return f.Job
	}
	return path[strings.LastIndexByte(path, '/')+1:]
}
