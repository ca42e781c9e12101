package labcmd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/format/atomicfile"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/render"
	"github.com/quell-dev/quell/internal/lab/render/parquet"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

func (a *commands) labReport() *cobra.Command {
	var formats []string
	var out, expect string
	cmd := &cobra.Command{
		Use: "report FOLDER", Short: "write a study's results as a page and as tables", Args: cobra.ExactArgs(1),
		ValidArgsFunction: folders,
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := a.openReport(args[0], expect)
			if err != nil {
				return err
			}
			if st, err := os.Stat(args[0]); out == "" && err == nil && st.IsDir() {
				if out, err = result.Inside(args[0], reportDir); err != nil {
					return app.Usage(err, "remove it, or name another folder with --out")
				}
			}
			return writeReport(a.Out, r, cmp.Or(out, r.Study.Name+"-report"), formats)
		},
	}
	cmd.Flags().StringSliceVar(&formats, "format", nil, "html, md, csv, jsonl, parquet (default: the study's)")
	cmd.Flags().StringVar(&out, "out", "", "folder to write to (default FOLDER/report)")
	cmd.Flags().StringVar(&expect, "expect", "", "file of expected values (default: the study's)")
	return cmd
}

// reportDir is the folder of the report in a study's folder.
const reportDir = "report"

// writeReport writes a report in the formats, by default those of the study, and prints the names of the files.
func writeReport(w io.Writer, r *render.Report, dir string, formats []string) error {
	renderers := map[string]func(io.Writer, *render.Report) error{"html": render.HTML, "md": markdownWithPlots(dir, r.Study.Name), "csv": render.CSV, "jsonl": render.JSONL,
		"parquet": func(w io.Writer, r *render.Report) error { return parquet.Values(w, &r.Results) }}
	if len(formats) == 0 {
		formats = r.Study.Report.Formats
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	for _, format := range formats {
		write := renderers[format]
		if write == nil {
			return app.Usage(fmt.Errorf("write report: unknown format %q", format), "use html, md, csv, jsonl or parquet")
		}
		name := filepath.Join(dir, r.Study.Name+"."+format)
		if err := atomicfile.Replace(name, func(w io.Writer) error { return write(w, r) }); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
		fmt.Fprintln(w, name)
	}
	return nil
}

// markdownWithPlots renders Markdown with its plots as SVG files in a folder next to it.
func markdownWithPlots(dir, name string) func(io.Writer, *render.Report) error {
	return func(w io.Writer, r *render.Report) error {
		plots := name + "-plots"
		if err := os.RemoveAll(filepath.Join(dir, plots)); err != nil {
			return err
		}
		n := 0
		return render.MarkdownWith(w, r, func(svg []byte) (string, error) {
			n++
			path := fmt.Sprintf("%s/%03d.svg", plots, n)
			if err := os.MkdirAll(filepath.Join(dir, plots), 0o755); err != nil {
				return "", err
			}
			return path, os.WriteFile(filepath.Join(dir, path), svg, 0o644)
		})
	}
}

// packDir is the prefix of the temporary folders of packs.
const packDir = "quell-lab-pack"

// openResults opens a folder of results or a pack, which it unpacks to a temporary folder
// that done removes; warn is as in openStudy.
func openResults(name string, warn io.Writer) (f *result.Folder, s *study.Study, done func(), err error) {
	st, err := os.Stat(name)
	if err != nil || st.IsDir() {
		f, s, err = openStudy(name, warn)
		return f, s, func() {}, err
	}
	dir, err := workload.Scratch(packDir)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("unpack %s: %w", name, err)
	}
	done = func() { os.RemoveAll(dir) }
	file, err := os.Open(name)
	if err == nil {
		_, err = render.Unpack(file, filepath.Join(dir, "study"))
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		done()
		return nil, nil, nil, app.Usage(fmt.Errorf("unpack %s: %w", name, err), "name a folder of results, or what `quell lab pack` wrote")
	}
	if f, s, err = openStudy(filepath.Join(dir, "study"), warn); err != nil {
		done()
	}
	return f, s, done, err
}

const expectExample = "studies/expect/ has examples of expected values"

// expectFile is a study's expected values at the time of the run.
const expectFile = "expect.yaml"

// openReport computes everything that a report shows. Unreadable records are named and excluded.
func (a *commands) openReport(name, expect string) (*render.Report, error) {
	f, s, done, err := openResults(name, a.Err)
	if err != nil {
		return nil, err
	}
	defer done()
	runs, err := f.Runs()
	if err != nil {
		fmt.Fprintln(a.Err, "left out:", err)
	}
	runs = a.newest(runs)
	r := &render.Report{Study: s, Results: analyse.Compute(s, runs), Runs: runs}
	r.Lock, err = f.Lock()
	if err == nil {
		r.Machines, r.Missed, err = machines(f)
	}
	if err == nil {
		r.Overhead, err = costOf(f)
	}
	if err == nil {
		err = expected(r, f, expect)
	}
	return r, err
}

// newest returns the runs of the newest record's series, and says how many others there are.
func (a *commands) newest(runs []result.Run) []result.Run {
	of, all := seriesOf(runs), len(runs)
	runs = slices.DeleteFunc(runs, func(r result.Run) bool { return !of.has(&r) })
	if left := all - len(runs); left > 0 {
		fmt.Fprintf(a.Err, "left out: %d runs of another machine, of this one before it changed, or with other stamps\n", left)
	}
	return runs
}

// expected compares a file of expected values, if there is one, with the results.
func expected(r *render.Report, f *result.Folder, file string) error {
	given := file != ""
	if !given {
		file = f.Path(expectFile)
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && !given {
		return nil
	}
	if err != nil {
		return app.Usage(fmt.Errorf("read expected values: %w", err), "name their file with --expect")
	}
	x, err := render.ParseExpectations(file, text)
	if err != nil {
		return remedied(err, file, expectExample)
	}
	r.Checks = x.Against(&r.Results)
	return nil
}

// diff compares two folders or packs of a study.
func (a *commands) diff(one, other string, force bool) (*render.Diff, error) {
	earlier, err := a.openReport(one, "")
	if err != nil {
		return nil, err
	}
	later, err := a.openReport(other, "")
	if err != nil {
		return nil, err
	}
	d, err := render.Compare(earlier, later, force)
	if err != nil {
		return nil, app.Negative(err, "see `quell lab compare --help`")
	}
	return d, nil
}

func (a *commands) labCompare() *cobra.Command {
	force := false
	cmd := &cobra.Command{
		Use: "compare A B", Aliases: []string{"diff"}, Short: "compare the results of a study from two machines or dates", Args: cobra.ExactArgs(2),
		ValidArgsFunction: folders,
		RunE: func(_ *cobra.Command, args []string) error {
			var all []*render.Diff
			for _, pair := range compared(args[0], args[1]) {
				d, err := a.diff(pair[0], pair[1], force)
				if err != nil {
					return err
				}
				all = append(all, d)
			}
			switch {
			case a.JSON && len(all) == 1:
				return a.WriteJSON(all[0])
			case a.JSON:
				return a.WriteJSON(all)
			}
			for _, d := range all {
				if err := d.Markdown(a.Out); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also compare results of different kinds")
	return a.WithJSON(cmd)
}

func (a *commands) labPack() *cobra.Command {
	return &cobra.Command{
		Use: "pack FOLDER [FILE.tar.gz]", Short: "pack a study's records into one file", Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: folders,
		RunE: func(_ *cobra.Command, args []string) error {
			f, s, err := openStudy(args[0], a.Err)
			if err != nil {
				return err
			}
			name := s.Name + ".tar.gz"
			if len(args) > 1 {
				name = args[1]
			}
			if err := app.WriteFile(name, func(w io.Writer) error { return render.Pack(w, f) }); err != nil {
				return fmt.Errorf("write pack: %w", err)
			}
			fmt.Fprintln(a.Out, name)
			return nil
		},
	}
}
