package labcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/platform"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// platformFile is the JSON form of a platform's page, in its folder.
const platformFile = "platform.json"

func (a *commands) labPlatform() *cobra.Command {
	var o runOptions
	repetitions, seconds := 3, 3
	cmd := &cobra.Command{
		Use: "platform", Short: "test this machine: cores, threads on a core, memory, neighbours, network, noise", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if repetitions < 1 || seconds < 1 {
				return app.Usage(fmt.Errorf("test platform: %d repetitions of %d s", repetitions, seconds), "use at least 1 repetition of at least 1 s")
			}
			return a.testPlatform(cmd.Context(), o, repetitions, seconds)
		},
	}
	cmd.Flags().StringVar(&o.out, "out", filepath.Join("lab-results", "platform"), "folder for its results")
	cmd.Flags().IntVar(&repetitions, "repetitions", repetitions, "runs of each cell")
	cmd.Flags().IntVar(&seconds, "seconds", seconds, "length of a run")
	journalFlag(cmd, &o.journal)
	return a.WithJSON(cmd)
}

func (a *commands) testPlatform(ctx context.Context, o runOptions, repetitions, seconds int) error {
	h, err := host.Open("/")
	if err != nil {
		return app.Usage(err, "mount /proc")
	}
	top, err := h.Topology()
	if err != nil {
		return app.Usage(err, "mount /sys")
	}
	allowed, err := host.Affinity(0)
	if err != nil {
		return fmt.Errorf("read the CPU affinity: %w", err)
	}
	files, err := platform.Studies(top, allowed, repetitions, seconds)
	if err != nil {
		return err
	}
	inner := *a.App // the studies' own output is not part of the page
	inner.Out, inner.JSON = a.Text(), false
	quiet := &commands{&inner}
	results := map[string]*analyse.Results{}
	var missing error
	for _, file := range files {
		s, err := study.Parse(file.Name, file.Text, known())
		if err != nil {
			return err
		}
		fmt.Fprintf(quiet.Out, "== %s: %s\n", s.Name, s.Question)
		f, err := result.Create(filepath.Join(o.out, s.Name), a.lockOf(s, file.Text))
		if err != nil {
			return app.Usage(err, "name another folder with --out: this one has results of another machine or other options")
		}
		err = quiet.runStudy(ctx, f, s, o)
		if ctx.Err() == nil && app.IsNegative(err) {
			missing = errors.Join(missing, fmt.Errorf("%s: %w", s.Name, err))
		} else if err != nil {
			return err
		}
		r, err := a.openReport(f.Dir(), "")
		if err != nil {
			return err
		}
		results[s.Name] = &r.Results
	}
	page := platform.NewPage(top, results)
	err = errors.Join(app.WriteFile(filepath.Join(o.out, "platform.md"), page.Markdown), writeJSONFile(filepath.Join(o.out, platformFile), page))
	if err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	if a.JSON {
		return errors.Join(a.WriteJSON(page), missing)
	}
	fmt.Fprintln(a.Out)
	return errors.Join(page.Markdown(a.Out), missing)
}

// compared returns the pairs of folders to compare: those of the platforms' studies if
// both folders are platforms, else the two folders themselves.
func compared(earlier, later string) [][2]string {
	for _, dir := range []string{earlier, later} {
		if _, err := os.Stat(filepath.Join(dir, platformFile)); err != nil {
			return [][2]string{{earlier, later}}
		}
	}
	var all [][2]string
	for _, name := range []string{platform.Threads, platform.Memory, platform.Pairs, platform.Network} {
		all = append(all, [2]string{filepath.Join(earlier, name), filepath.Join(later, name)})
	}
	return all
}
