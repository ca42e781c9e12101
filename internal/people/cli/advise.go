package cli

import (
	_ "embed" // the anti-affinity template
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

func (a *commands) advise() *cobra.Command {
	c := &cluster.Client{}
	var job, since, label string
	var incidents int
	var confidence float64
	var asYAML, required bool
	cmd := &cobra.Command{
		Use: "advise-scheduler", Short: "list jobs that should not share a machine, for the cluster's scheduler", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case asYAML && a.JSON:
				return app.Usage(errors.New("--json and --yaml"), "choose one")
			case !(confidence >= 0 && confidence <= 1):
				return fmt.Errorf("--min-confidence %v: want 0 to 1", confidence)
			case incidents < 1:
				return fmt.Errorf("--min-incidents %d: want 1 or more", incidents)
			case !labelShape.MatchString(label):
				return fmt.Errorf("--label %q: want a label's name, such as app", label)
			}
			all, err := c.Pairs(cmd.Context(), job, since)
			if err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(p cluster.Pair) bool { return p.Incidents < incidents || p.Confidence < confidence })
			if asYAML {
				return writeAntiAffinity(a.Out, all, label, required)
			}
			return a.printPairs(all)
		},
	}
	f := cmd.Flags()
	f.StringVar(&job, "job", "", "only pairs in which this job is the victim")
	f.StringVar(&since, "since", "", "only incidents since a time, a day, or a duration ago (168h)")
	f.IntVar(&incidents, "min-incidents", 1, "only pairs with at least this many incidents")
	f.Var((*command.Rate)(&confidence), "min-confidence", "only pairs of at least this confidence, 0 to 1, or a percentage")
	f.BoolVar(&asYAML, "yaml", false, "write Kubernetes anti-affinity")
	f.StringVar(&label, "label", "app", "pod label that holds the job's name")
	f.BoolVar(&required, "required", false, "with --yaml: required instead of preferred anti-affinity, for proven pairs only")
	a.addServer(cmd, c)
	cmd.AddCommand(a.place())
	return a.WithJSON(cmd)
}

func (a *commands) printPairs(all []cluster.Pair) error {
	columns := []string{"victim", "antagonist", "level", "#incidents", "#machines", "#strength", "#caps", "#helped", "#relative cost", "#usage lost", "#confidence"}
	return app.Table(a.App, all, columns, func(p cluster.Pair) []string {
		relative, lost := "-", "-"
		if p.RelativeCost != nil {
			relative = fmt.Sprintf("%.2f", *p.RelativeCost)
		}
		if p.UsageLost != nil {
			lost = fmt.Sprintf("%.0f %%", 100**p.UsageLost)
		}
		return []string{string(p.Victim), string(p.Antagonist), levelOf(p), fmt.Sprint(p.Incidents), fmt.Sprint(p.Machines), fourDigits(p.Strength),
			fmt.Sprint(p.Caps), fmt.Sprint(p.Helped), relative, lost, fmt.Sprintf("%.2f", p.Confidence)}
	})
}

// levelOf is how sure a pair is.
func levelOf(p cluster.Pair) string {
	if p.Proven > 0 {
		return detect.Proven.String()
	}
	return detect.Likely.String()
}

var (
	// labelShape matches a label's name (Kubernetes, "Labels and Selectors": syntax).
	labelShape = regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	// valueShape matches a label's value.
	valueShape = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
)

//go:embed antiaffinity.yaml.tmpl
var antiAffinity string

// podSet is what the pods of a job have in common: the value of the label, and their
// namespace, "" if the job's name has none.
type podSet struct{ Namespace, Name string }

// String is the workload as people write it.
func (w podSet) String() string {
	if w.Namespace == "" {
		return w.Name
	}
	return w.Namespace + "/" + w.Name
}

// otherRuntimes begin the names of jobs that are no pods (docs/names.md), after the user if it is a
// user's.
var otherRuntimes = []string{"docker", "podman", "containerd", "lxc", "machined", "vm"}

// podsOf takes the workload from a job's name: namespace/workload/container, as jobs of
// pods are called, or a name that a rule gave, with or without a namespace.
func podsOf(job sample.JobName) (w podSet, ok bool) {
	parts := strings.Split(string(job), "/")
	if len(parts) == 3 && strings.HasPrefix(parts[0], "user-") && slices.Contains(otherRuntimes, parts[1]) {
		return podSet{}, false
	}
	switch {
	case len(parts) == 1:
		w = podSet{Name: parts[0]}
	case len(parts) <= 3 && !slices.Contains(otherRuntimes, parts[0]):
		w = podSet{parts[0], parts[1]}
	}
	return w, valueShape.MatchString(w.Name) && (len(parts) == 1 || valueShape.MatchString(w.Namespace))
}

// apart is a pair of workloads: the antagonist's, with the strongest pair of their jobs.
type apart struct {
	podSet
	cluster.Pair
}

// writeAntiAffinity writes a patch of a pod template for each victim, as documents of a
// YAML stream (Kubernetes API, PodAntiAffinity).
func writeAntiAffinity(w io.Writer, all []cluster.Pair, label string, required bool) error {
	var invalid, unproven []cluster.Pair
	var victims []podSet
	pairs := map[podSet][]apart{}
	for _, p := range all { // the strongest evidence first
		victim, ok := podsOf(p.Victim)
		antagonist, valid := podsOf(p.Antagonist)
		switch {
		case !ok || !valid:
			invalid = append(invalid, p)
		case required && p.Proven == 0: // a hard rule needs proof
			unproven = append(unproven, p)
		case victim == antagonist || slices.ContainsFunc(pairs[victim], func(a apart) bool { return a.podSet == antagonist }):
			// containers of one pod cannot be apart; other containers of the workload need no other rule
		default:
			if pairs[victim] == nil {
				victims = append(victims, victim)
			}
			pairs[victim] = append(pairs[victim], apart{antagonist, p})
		}
	}
	weight := func(confidence float64) int { return max(1, min(100, int(math.Round(100*confidence)))) }
	t, err := template.New("anti-affinity").Funcs(template.FuncMap{"weight": weight, "level": levelOf}).Parse(antiAffinity)
	if err != nil {
		return err
	}
	return t.Execute(w, map[string]any{"Invalid": invalid, "Unproven": unproven, "Victims": victims, "Pairs": pairs, "Label": label, "Required": required})
}
