package record

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Trace is what an agent sampled of one victim in all its recorded runs, in order of
// time, with the labels.
type Trace struct {
	Name    string // the victim's workload
	Samples []sample.Sample
	Labels  []trace.Label
	Runs    []Run // the runs in it and those left out
}

// Run is one run of a trace.
type Run struct {
	Cell      string    `json:"cell"`
	N         int       `json:"n"`
	Stretches []Stretch `json:"stretches,omitempty"`
	Samples   int       `json:"samples"`
	// Caches says which CPUs began or ceased to share a cache, "" for none.
	Caches string `json:"caches,omitempty"`
	// LeftOut is why it is not in the trace, "" where it is.
	LeftOut string `json:"left,omitempty"`
}

// other is the name of what ran outside any task; it is not renamed.
const other = "(other)"

// Traces creates a trace of each victim's workload from the valid runs of a folder that
// an agent has sampled, for the first measured part of each run. Only samples whose
// interval lies within a run's verified window are used; the truth of others is not
// known. Tasks are named after the folder's study, their part and their workload, so that
// a task has the same name in every run.
func Traces(f *result.Folder, s *study.Study, runs []result.Run) ([]Trace, error) {
	var all []Trace
	runs = slices.Clone(runs)
	slices.SortStableFunc(runs, func(a, b result.Run) int { return a.Start.Compare(b.Start) })
	for i := range runs {
		r := &runs[i]
		if r.Verdict != result.Valid {
			continue
		}
		victim := slices.IndexFunc(r.Cell.Parts, func(p study.Part) bool { return p.Measure })
		if victim < 0 {
			continue
		}
		rows, err := trace.Load(f.RunPath(r, TraceFile))
		if errors.Is(err, fs.ErrNotExist) {
			continue // not recorded
		}
		if err != nil {
			return nil, err
		}
		seconds, err := f.Samples(r)
		if err != nil {
			return nil, err
		}
		seconds = slices.DeleteFunc(seconds, func(s result.Sample) bool { return s.Host != "" })
		name := r.Cell.Parts[victim].Workload.Name
		if strings.Contains(name, "/") { // a file is named after it, and the records may be a stranger's
			return nil, fmt.Errorf("make traces: the record of %s, run %d, names the workload %q: want a name without a slash", r.Cell.String(), r.N, name)
		}
		k := slices.IndexFunc(all, func(t Trace) bool { return t.Name == name })
		if k < 0 {
			k = len(all)
			all = append(all, Trace{Name: name})
		}
		if err := all[k].add(f, s, r, rows, seconds); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (t *Trace) add(f *result.Folder, s *study.Study, r *result.Run, rows []sample.Sample, seconds []result.Sample) error {
	run := Run{Cell: r.Cell.String(), N: r.N, Stretches: Stretches(r, seconds)}
	var err error
	if run.Caches, err = cacheChanges(f.RunPath(r, CachesFile)); err != nil {
		return err
	}
	for _, one := range run.Stretches {
		if one.Truth == Unclear {
			run.LeftOut = "unclear: " + one.Why
		}
	}
	period := time.Second
	if a := s.Observe.Agent; a != nil {
		period = a.Period
	}
	tasks := map[string]sample.TaskName{other: other}
	jobs := map[string]string{other: other}
	for i := range r.Cell.Parts {
		p := &r.Cell.Parts[i]
		tasks[p.Name()] = sample.TaskName("/" + s.Name + "/" + strings.ReplaceAll(p.Name(), "/", "-") + "-" + p.Workload.Name)
		jobs[p.Name()] = p.Workload.Name
	}
	from, to := sample.At(r.Start.Add(r.Window.From)), sample.At(r.Start.Add(r.Window.To))
	named := map[sample.TaskName]sample.TaskName{} // by the run's task names
	for _, one := range rows {
		if task, ok := tasks[string(one.Job)]; ok {
			named[one.Task] = task
		}
	}
	for _, one := range rows {
		task, ok := tasks[string(one.Job)]
		if !ok || one.TS.Add(-period) < from || one.TS > to {
			continue
		}
		run.Samples++
		if run.LeftOut == "" {
			one.Machine, one.Task, one.Job = s.Name, task, sample.JobName(jobs[string(one.Job)])
			for k := range one.Served {
				if task, ok := named[one.Served[k].By]; ok {
					one.Served[k].By = task
				}
			}
			t.Samples = append(t.Samples, one)
		}
	}
	if run.Samples == 0 {
		run.LeftOut = "the agent took no sample in the run's window"
	}
	for _, one := range run.Stretches {
		if one.Truth == Hurt && run.LeftOut == "" {
			t.Labels = append(t.Labels, trace.Label{Machine: s.Name, Victim: tasks[one.Victim], Antagonist: tasks[one.Antagonist], Cause: one.Cause,
				From: sample.At(r.Start.Add(one.Window.From)), To: sample.At(r.Start.Add(one.Window.To))})
		}
	}
	t.Runs = append(t.Runs, run)
	return nil
}

// cacheRatio is the minimum ratio between round trips through another cache and within one
// (see package observe).
const cacheRatio = 2.5

// cacheChanges says which CPUs a hypervisor moved to a common cache or apart during the run, from
// the first and the last look.
func cacheChanges(file string) (string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	var looks []map[string]float64
	if err == nil {
		err = json.Unmarshal(text, &looks)
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	if len(looks) < 2 {
		return "", nil
	}
	first, last := looks[0], looks[len(looks)-1]
	var words []string
	for pair, a := range first {
		if b := last[pair]; a > 0 && b > 0 && math.Max(a/b, b/a) >= cacheRatio {
			words = append(words, fmt.Sprintf("CPUs %s: %.0f ns before, %.0f ns after", pair, a, b))
		}
	}
	slices.Sort(words)
	return strings.Join(words, "; "), nil
}

// Write writes a trace with its labels. Remarks before it name the runs whose CPUs
// changed caches and the runs that were left out.
func (t *Trace) Write(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, r := range t.Runs {
		if r.Caches != "" {
			fmt.Fprintf(b, "# cache sharing changed in %s: %s\n", r.Cell, r.Caches)
		}
		if r.LeftOut != "" {
			fmt.Fprintf(b, "# left out %s: %s\n", r.Cell, r.LeftOut)
		}
	}
	if err := errors.Join(trace.WriteAll(b, t.Samples, t.Labels, nil), b.Flush()); err != nil {
		return fmt.Errorf("write trace %s: %w", t.Name, err)
	}
	return nil
}
