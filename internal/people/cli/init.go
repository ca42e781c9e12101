package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// initFile is where the packaged agent looks for its configuration.
const initFile = "/etc/quell/agent.yaml"

func (a *commands) init() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "init [FILE|-]", Short: "write a commented configuration for this machine: which tasks there are, which would be protected, and why", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := host.Open("/")
			if err != nil {
				return app.Usage(err, "mount /proc")
			}
			c := config.Default()
			if ps := c.Validate(); len(ps) > 0 { // compiles the rules
				return fmt.Errorf("default configuration: %s", ps[0])
			}
			found, err := agent.Survey(cmd.Context(), h, &c)
			if err != nil {
				return app.Usage(err, "run as root")
			}
			if a.JSON {
				return a.WriteJSON(surveyed(found))
			}
			var text bytes.Buffer
			writeInit(&text, found, c.MachineName(), a.Version)
			file := initFile
			if len(args) == 1 {
				file = args[0]
			}
			if file == "-" {
				_, err := text.WriteTo(a.Out)
				return err
			}
			if err := writeConfig(file, &text, force); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.Out, "wrote %s: %s\nnext: read it, then start quell-agent --config %s\n", file, count(found), file)
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace an existing file")
	return a.WithJSON(cmd)
}

// writeConfig makes a file or, with force, replaces one: the old one is lost only when the new one is
// complete.
func writeConfig(file string, text *bytes.Buffer, force bool) error {
	if _, err := os.Lstat(file); err == nil && !force {
		return app.Usage(fmt.Errorf("%s: file exists", file), "add --force to replace it, or `quell init -` to print it")
	}
	err := app.WriteFile(file, func(w io.Writer) error {
		_, err := text.WriteTo(w)
		return err
	})
	if err != nil {
		return app.Usage(err, "make its directory, or name another file: `quell init agent.yaml`")
	}
	return nil
}

// surveyedTask is a task as `quell init --json` lists it.
type surveyedTask struct {
	Task     sample.TaskName   `json:"task"`
	Job      sample.JobName    `json:"job"`
	Class    sample.Class      `json:"class"`
	Helped   bool              `json:"others_may_be_capped_for"`
	Why      string            `json:"class_why"`
	Proposed bool              `json:"proposed"`
	Cgroup   string            `json:"cgroup"`
	Labels   map[string]string `json:"labels,omitempty"`
}

func surveyed(found []agent.Found) []surveyedTask {
	all := make([]surveyedTask, 0, len(found))
	for i := range found {
		f := &found[i]
		t := task(f)
		all = append(all, surveyedTask{t.Name, f.Job, f.Class, t.MayBeHelped(), f.Why, f.Proposed, sample.NameText(f.Path), f.Labels()})
	}
	slices.SortFunc(all, func(x, y surveyedTask) int { return strings.Compare(string(x.Task), string(y.Task)) })
	return all
}

// task is the task that the agent makes of a found cgroup.
func task(f *agent.Found) sample.Task {
	t := sample.Task{Name: f.Name, Job: f.Job, Class: f.Class, Protected: f.Protected, NeverCap: f.NeverCap || f.Own}
	if t.Name == "" {
		t.Name = sample.TaskName(f.Path)
	}
	return t
}

func count(found []agent.Found) string {
	helped := 0
	for i := range found {
		if t := task(&found[i]); t.MayBeHelped() {
			helped++
		}
	}
	return fmt.Sprintf("%d tasks, others may be capped for %d of them", len(found), helped)
}

// groups are the parts of the file, in the order of what is asked first.
var groups = []struct {
	head string
	of   func(*sample.Task) bool
}{
	{"Latency-sensitive: others may be capped for these; these are never capped.",
		func(t *sample.Task) bool { return t.Class == sample.LatencySensitive }},
	{"Protected: others may be capped for these, and these may be capped.",
		func(t *sample.Task) bool { return t.Class != sample.LatencySensitive && t.MayBeHelped() }},
	{"Batch: may be capped.",
		func(t *sample.Task) bool { return t.Class == sample.Batch && !t.MayBeHelped() && t.MayBeCapped() }},
	{"Best-effort: capped first and hardest.",
		func(t *sample.Task) bool { return t.Class == sample.BestEffort && !t.MayBeHelped() && t.MayBeCapped() }},
	{"Reported, never capped, and no other is capped for these.",
		func(t *sample.Task) bool { return !t.MayBeHelped() && !t.MayBeCapped() }},
}

// mostListed bounds the tasks listed in a part of the file.
const mostListed = 100

// writeInit writes the configuration: the defaults that matter at first, the tasks that there are as
// comments, and the default rules.
func writeInit(w io.Writer, found []agent.Found, machine, version string) {
	fmt.Fprintf(w, "# Configuration of quell-agent, by `quell init` (quell %s) on %s. Every other key has its\n# default: `quell-agent config` lists them.\n", version, oneLine(machine))
	fmt.Fprintf(w, "#\n# What there is now: %s.\n", count(found))
	all := make([]*agent.Found, len(found))
	for i := range found {
		all[i] = &found[i]
	}
	slices.SortFunc(all, func(x, y *agent.Found) int { return strings.Compare(string(task(x).Name), string(task(y).Name)) })
	for _, g := range groups {
		n := 0
		for _, f := range all {
			t := task(f)
			if !g.of(&t) {
				continue
			}
			switch n++; {
			case n == 1:
				fmt.Fprintf(w, "#\n# %s\n", g.head)
				fallthrough
			case n <= mostListed:
				fmt.Fprintf(w, "#   %s (job %s): %s\n", oneLine(t.Name.String()), oneLine(t.Job.String()), oneLine(f.Why))
			}
		}
		if n > mostListed {
			fmt.Fprintf(w, "#   and %d more\n", n-mostListed)
		}
	}
	fmt.Fprint(w, `
enforce:
  # off: only records; advise: says what it would do and changes nothing; on: caps.
  mode: advise

spec:
  # A task is judged by its normal cost, which is learnt from 100 samples, one a minute. From this
  # many on it is judged provisionally: incidents say so, and no cap follows. 0: never.
  provisional_samples: 20

names:
  # Whether pods may choose their class, job and protection by annotations quell.io/…; set it to
  # false where tenants write them.
  annotations: true

# The first rule that matches applies. A pattern that begins with / is of cgroup paths, any other of
# task names as above. With propose: true the class is proposed from what is known of the task. To
# set the class of a task whatever it does, put a rule above the others, for example:
#   - {match: "shop/web-*/app", class: latency-sensitive}
#   - {match: "*/encode-*/*", job: encode, class: best-effort}
rules:
`)
	for line := range strings.Lines(config.DefaultRules()) {
		if line = strings.TrimRight(line, "\n"); line != "" {
			line = "  " + line
		}
		fmt.Fprintln(w, line)
	}
}

// oneLine makes a text one that is within a line of comments.
func oneLine(s string) string { return sample.TaskName(s).String() }
