package cli

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/placement"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

func (a *commands) place() *cobra.Command {
	c := &cluster.Client{}
	var degradation, prior, tasks, since string
	cmd := &cobra.Command{
		Use: "place JOB[=N]…", Short: "pair tasks that should share a machine, and suggest how to pin them", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := placed(args, tasks)
			if err != nil {
				return err
			}
			var measured []placement.Degradation
			if degradation != "" {
				if measured, err = readRows(degradation, degradations); err != nil {
					return err
				}
			} else {
				pairs, err := c.Pairs(cmd.Context(), "", since)
				if err != nil {
					return err
				}
				var known []placement.Degradation
				if prior != "" {
					if known, err = readRows(prior, degradations); err != nil {
						return err
					}
				}
				measured = degradationsFromPairs(all, pairs, known)
			}
			advice, err := placement.Advise(all, measured)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.WriteJSON(advice)
			}
			return a.printPlacement(advice)
		},
	}
	f := cmd.Flags()
	f.StringVar(&degradation, "degradation", "", "CSV file of tasks' losses next to others (default: from quell-server)")
	f.StringVar(&prior, "prior", "", "without --degradation: such a file, for pairs of jobs that no incident names")
	f.StringVar(&tasks, "tasks", "", "CSV file of tasks' misses and loads")
	f.StringVar(&since, "since", "", "without --degradation: only incidents since a time, a day, or a duration ago (168h)")
	a.addServer(cmd, c)
	return a.WithJSON(cmd)
}

func (a *commands) printPlacement(advice placement.Advice) error {
	columns := []string{"task", "with", "#loss %", "by", "pinning"}
	err := app.Table(a.App, advice.Pairs, columns, func(p placement.Pair) []string {
		return []string{p.A, cmp.Or(p.B, "-"), fmt.Sprintf("%.1f", 100*p.Loss), string(p.Basis), cmp.Or(string(p.Pinning), "-")}
	})
	if err != nil {
		return err
	}
	exact := "no pairing loses less"
	if !advice.Exact {
		exact = "no exchange between two pairs reduces it"
	}
	_, err = fmt.Fprintf(a.Out, "total %.1f %%: %s; a random pairing loses %.1f %%\n", 100*advice.Loss, exact, 100*advice.Random)
	return err
}

// placed returns the named tasks with their data from the file.
func placed(args []string, file string) ([]placement.Task, error) {
	known := map[string]placement.Task{}
	if file != "" {
		list, err := readRows(file, taskRows)
		if err != nil {
			return nil, err
		}
		for _, t := range list {
			if _, twice := known[t.Name]; twice {
				return nil, fmt.Errorf("read %s: task %s is given twice", file, t.Name)
			}
			known[t.Name] = t
		}
	}
	var all []placement.Task
	for _, arg := range args {
		name, count, several := strings.Cut(arg, "=")
		n := 1
		if several {
			var err error
			if n, err = strconv.Atoi(count); err != nil || n < 1 || n > placement.MaxTasks {
				return nil, fmt.Errorf("%q: want JOB or JOB=N, N from 1 to %d", arg, placement.MaxTasks)
			}
		}
		if name == "" {
			return nil, fmt.Errorf("%q: want a job's name", arg)
		}
		t, ok := known[name]
		if !ok {
			t = placement.Task{Name: name, Misses: -1, Load: -1}
		}
		all = append(all, slices.Repeat([]placement.Task{t}, n)...)
	}
	return all, nil
}

// degradationsFromPairs uses the strength of the server's pairs as the jobs' losses to each
// other. Jobs without a common incident lose what is known of them otherwise, or nothing.
func degradationsFromPairs(tasks []placement.Task, pairs []cluster.Pair, prior []placement.Degradation) (all []placement.Degradation) {
	lost := map[[2]string]float64{}
	for _, d := range prior {
		lost[[2]string{d.Victim, d.Neighbour}] = d.Ratio
	}
	for _, p := range pairs {
		lost[[2]string{string(p.Victim), string(p.Antagonist)}] = max(0, p.Strength-1)
	}
	done := map[[2]string]bool{}
	for _, v := range tasks {
		for _, n := range tasks {
			if k := [2]string{v.Name, n.Name}; !done[k] {
				done[k] = true
				all = append(all, placement.Degradation{Victim: v.Name, Neighbour: n.Name, Ratio: lost[k]})
			}
		}
	}
	return all
}

// readRows reads a file of rows with a header.
func readRows[T any](file string, parse func(io.Reader) ([]T, error)) ([]T, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return all, nil
}

// columnOf finds a column by one of its names.
func columnOf(header []string, names ...string) int {
	return slices.IndexFunc(header, func(h string) bool { return slices.Contains(names, strings.TrimSpace(h)) })
}

// csvRows calls use for each row after the header; its errors have the line number.
func csvRows(r io.Reader, head func(header []string) error, use func(row []string) error) error {
	c := csv.NewReader(r)
	c.Comment = '#' // the lab's stamps
	header, err := c.Read()
	if err != nil {
		return fmt.Errorf("header: %w", err)
	}
	if err := head(header); err != nil {
		return err
	}
	for {
		row, err := c.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := use(row); err != nil {
			line, _ := c.FieldPos(0)
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

// degradations reads the tasks' losses next to others: of a table of them, or of a report
// of the lab as CSV. There a pair's loss is the mean of its slowdowns, less 1, over the
// cells in which the two were alone with each other.
func degradations(r io.Reader) (all []placement.Degradation, err error) {
	var at [3]int
	analysis, quantity := -1, -1
	slowdowns := map[[2]string]struct{ sum, n float64 }{}
	err = csvRows(r, func(header []string) error {
		if analysis, quantity = columnOf(header, "analysis"), columnOf(header, "quantity"); analysis >= 0 && quantity >= 0 {
			at = [3]int{columnOf(header, "at"), 0, columnOf(header, "value")}
		} else {
			analysis = -1
			at = [3]int{columnOf(header, "victim", "foreground"), columnOf(header, "neighbour", "background"), columnOf(header, "degradation_percent", "interference_metric")}
		}
		if slices.Min(at[:]) < 0 {
			return fmt.Errorf("columns %q: want victim, neighbour and degradation_percent, or those of quell lab report --format csv", header)
		}
		return nil
	}, func(row []string) error {
		pair := [2]string{row[at[0]], row[at[1]]}
		if analysis >= 0 {
			victim, neighbour, ok := strings.Cut(row[at[0]], " next to ")
			if row[analysis] != "degradation" || row[quantity] != "slowdown" || row[at[2]] == "" || !ok || strings.Contains(neighbour, ", ") {
				return nil
			}
			pair = [2]string{victim, neighbour}
		}
		x, err := strconv.ParseFloat(strings.TrimSpace(row[at[2]]), 64)
		if err != nil {
			return fmt.Errorf("degradation %q: want a number", row[at[2]])
		}
		if analysis < 0 {
			all = append(all, placement.Degradation{Victim: pair[0], Neighbour: pair[1], Ratio: x / 100})
		} else {
			one := slowdowns[pair]
			one.sum, one.n = one.sum+x, one.n+1
			slowdowns[pair] = one
		}
		return nil
	})
	for _, pair := range slices.SortedFunc(maps.Keys(slowdowns), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		all = append(all, placement.Degradation{Victim: pair[0], Neighbour: pair[1], Ratio: slowdowns[pair].sum/slowdowns[pair].n - 1})
	}
	return all, err
}

// taskRows reads the tasks' data; missing values are unknown.
func taskRows(r io.Reader) (all []placement.Task, err error) {
	name, misses, load := -1, -1, -1
	err = csvRows(r, func(header []string) error {
		name, misses, load = columnOf(header, "task", "job"), columnOf(header, "misses"), columnOf(header, "load")
		if name < 0 || misses < 0 && load < 0 {
			return fmt.Errorf("columns %q: want task, and misses or load", header)
		}
		return nil
	}, func(row []string) error {
		t := placement.Task{Name: row[name], Misses: -1, Load: -1}
		for _, c := range []struct {
			what string
			at   int
			to   *float64
			most float64
		}{{"misses", misses, &t.Misses, placement.MaxMisses}, {"load", load, &t.Load, 1}} {
			if c.at < 0 || strings.TrimSpace(row[c.at]) == "" {
				continue
			}
			x, err := strconv.ParseFloat(strings.TrimSpace(row[c.at]), 64)
			if err != nil || !(x >= 0) || x > c.most {
				return fmt.Errorf("%s of %s: %q: want a number from 0 to %.4g", c.what, t.Name, row[c.at], c.most)
			}
			*c.to = x
		}
		all = append(all, t)
		return nil
	})
	return all, err
}
