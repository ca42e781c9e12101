// Package labcmd is quell lab, and the hidden commands of quell that the lab starts.
package labcmd

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/format/keyed"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/lab/env"
	"github.com/quell-dev/quell/internal/lab/load"
	"github.com/quell-dev/quell/internal/lab/network"
	"github.com/quell-dev/quell/internal/lab/observe"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

type commands struct{ *app.App }

// Command is quell lab: it runs studies and shows their results.
func Command(shared *app.App) *cobra.Command {
	a := &commands{shared}
	cmd := &cobra.Command{
		Use: "lab", Short: "run controlled co-location experiments", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.labCheck(), a.labPlan(), a.labRun(), a.labResume(), a.labStatus(), a.labRestore(), a.labAnalyse(), a.labReport(), a.labCompare(), a.labPack(), a.labPush(), a.labPull(), a.labTraces(), a.labPlatform(), a.labHosts(), a.labImage())
	return cmd
}

// Helpers are the hidden commands of this program that the lab starts.
func Helpers() []*cobra.Command {
	return []*cobra.Command{
		{Use: "lab-guard", Hidden: true, Args: app.NoArgs, Short: "continue processes that an ended lab has stopped",
			RunE: func(*cobra.Command, []string) error { return load.GuardMain(os.Stdin, os.Stdout) }},
		{Use: "lab-hold PROGRAM", Hidden: true, DisableFlagParsing: true, Short: "wait for a line, then become a program",
			RunE: func(_ *cobra.Command, args []string) error { return env.WaitAndExec(args) }},
		{Use: "lab-agent", Hidden: true, Args: cobra.MinimumNArgs(2), Short: "be PID 1 of a container or a guest",
			RunE: func(_ *cobra.Command, args []string) error { return env.AgentMain(args, watchHere) }},
		{Use: "lab-net NETWORK PROGRAM", Hidden: true, DisableFlagParsing: true, Short: "run a program on a network",
			RunE: func(_ *cobra.Command, args []string) error {
				if len(args) < 2 {
					return errors.New("lab-net: want a network and a program")
				}
				return network.Enter(args[0], args[1:])
			}},
		{Use: "lab-serve DIR", Hidden: true, Args: cobra.ExactArgs(1), Short: "serve a folder over HTTP and HTTPS",
			RunE: func(cmd *cobra.Command, args []string) error { return serveSite(cmd.Context(), args[0]) }},
		{Use: "lab-site KIND", Hidden: true, Args: cobra.ExactArgs(1), Short: "make a folder of files and become a web server for it",
			RunE: func(_ *cobra.Command, args []string) error { return becomeServer(args[0]) }},
		{Use: "lab-ask", Hidden: true, DisableFlagParsing: true, Short: "send requests to a web server until the standard input closes",
			RunE: func(cmd *cobra.Command, args []string) error {
				c, err := parseAsk(args)
				if err != nil {
					return err
				}
				return c.Play(cmd.Context(), os.Stdin, os.Stdout)
			}},
		labRemote(),
	}
}

// known returns the names that a study file may use.
func known() study.Known {
	return study.Known{Builtins: builtins(), Parsers: workload.ParserNames(), Knob: observe.CheckKnob,
		Options: checkOptions}
}

// readStudy reads a study's file.
func readStudy(file string) (*study.Study, []byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, app.Usage(fmt.Errorf("read study: %w", err), "name a study's file, e.g. studies/smoke.yaml")
	}
	s, err := study.Parse(file, text, known())
	if err == nil {
		if ps := observe.Problems(s.Preconditions); len(ps) > 0 {
			err = &keyed.InvalidError{What: "study " + file, Problems: ps}
		}
	}
	return s, text, remedied(err, file, "docs/lab.md has an example, docs/study.schema.json every key")
}

func remedied(err error, file, example string) error {
	if err == nil {
		return nil
	}
	if _, invalid := errors.AsType[*keyed.InvalidError](err); invalid {
		return app.Negative(err, "correct "+file+"; "+example)
	}
	return app.Usage(err, "it is one YAML document; "+example)
}

// openStudy opens a folder of results and reads its study, as it was when the folder was
// made. What this quell refuses is an error where runs are to be done, warn being nil;
// otherwise warn gets it, and the records can still be read.
func openStudy(dir string, warn io.Writer) (*result.Folder, *study.Study, error) {
	f, err := result.Open(dir)
	if err != nil {
		return nil, nil, app.Usage(err, "name the folder that `quell lab run` wrote, e.g. lab-results/smoke")
	}
	l, err := f.Lock()
	if err != nil {
		return nil, nil, app.Usage(err, "read it with the version of quell that wrote it")
	}
	s, problems, err := study.Recorded(filepath.Join(dir, l.Study), []byte(l.File), known())
	if err == nil && len(problems) > 0 && warn == nil {
		err = &keyed.InvalidError{What: "study " + l.Study, Problems: problems}
		return nil, nil, app.Usage(err, "correct its file and run that into another folder; `quell lab report "+dir+"` still shows these records")
	}
	if err != nil {
		return nil, nil, app.Usage(err, "read it with the version of quell that wrote it, "+l.Program)
	}
	for _, p := range problems {
		fmt.Fprintln(warn, "this quell would not run the study again:", printable.Text(p.String()))
	}
	return f, s, nil
}

func (a *commands) lockOf(s *study.Study, text []byte) result.Lock {
	sum := sha256.Sum256(text)
	return result.Lock{Study: s.Name, File: string(text), Hash: hex.EncodeToString(sum[:]), Program: "quell " + a.Version, Created: a.Now()}
}

// files completes file names with the extensions.
func files(ext ...string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return ext, cobra.ShellCompDirectiveFilterFileExt
	}
}

// folders completes names of folders.
func folders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

func total(plan []study.Planned) (sum time.Duration) {
	for _, p := range plan {
		sum += p.Takes
	}
	return sum
}

// formatDuration formats a duration with at most two units.
func formatDuration(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d < time.Second:
		return "no time"
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 10*time.Minute:
		return strings.TrimSuffix(fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second), " 0 s")
	case d.Round(time.Minute) < time.Hour:
		return fmt.Sprintf("%d min", d.Round(time.Minute)/time.Minute)
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
}
