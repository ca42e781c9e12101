package labcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/atomicfile"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/lab/observe"
	"github.com/quell-dev/quell/internal/lab/render"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/web"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// missedFile lists the preferred preconditions that a machine does not meet.
const missedFile = "missed.json"

// require checks the machine against the study's preconditions: required ones must be
// met, unmet preferred ones are recorded for the report.
func (l *labMachine) require(ctx context.Context, s *study.Study, f *result.Folder) error {
	if len(s.Preconditions.Require)+len(s.Preconditions.Prefer) == 0 {
		return nil
	}
	unmet, err := observe.Measure(ctx, l.host, s.Preconditions, time.Second)
	if err != nil {
		return err
	}
	missed := []string{}
	var required []error
	for _, u := range unmet {
		if u.Required {
			required = append(required, errors.New(u.String()))
			continue
		}
		missed = append(missed, u.String())
	}
	if err := errors.Join(required...); err != nil {
		return app.Negative(fmt.Errorf("run study: the machine does not meet the study's requirements: %w", err), "change the machine, or move the condition from require to prefer")
	}
	return writeJSONFile(f.Path(missedFile), missed)
}

// describe records the machine's description and returns its hash: records of another
// machine, or of this one after a change, are another series.
func (l *labMachine) describe(ctx context.Context, s *study.Study, f *result.Folder) (hash string, err error) {
	if !isReal(s) {
		return "", nil
	}
	d := observe.Describe(l.host, programs(ctx, s, l.version, true))
	if err := os.MkdirAll(f.Path("env"), 0o755); err != nil {
		return "", fmt.Errorf("describe the machine: %w", err)
	}
	return d.Hash(), writeJSONFile(f.Path("env", d.Hash()+".json"), d)
}

// versionFlag is how well-known tools print their version. Other programs are not started for that.
var versionFlag = map[string]string{"stress-ng": "--version", "sysbench": "--version", "fio": "--version", "iperf3": "--version", "sockperf": "--version", "qperf": "--version",
	"redis-benchmark": "--version", "oha": "--version", "wrk": "-v", "wrk2": "-v", "vegeta": "-version", "nginx": "-v", "apache2": "-v"}

// programs are the versions of quell and of the tools that a study's workloads run on this machine: "" if the study
// says where one is, unless those are to be started. Another version is another series.
func programs(ctx context.Context, s *study.Study, own string, anywhere bool) map[string]string {
	all := map[string]string{"quell.version": own}
	for _, w := range s.Workloads {
		name := ""
		if len(w.Command) > 0 {
			name = w.Command[0]
		} else if kind, err := parseServer(strings.Fields(w.Options)); err == nil && w.Builtin == study.HTTPServer {
			name = web.Program(kind)
		}
		flag, known := versionFlag[filepath.Base(name)]
		if known && !anywhere && strings.Contains(name, "/") {
			all["tool."+filepath.Base(name)], known = "", false
		}
		if !known {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		text, _ := exec.CommandContext(ctx, name, flag).CombinedOutput() // wrk -v fails after it has printed it
		cancel()
		line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		if line = printable.Text(line); line != "" {
			all["tool."+filepath.Base(name)] = line
		}
	}
	return all
}

// changed returns the differences of this machine from that of a series of records. It is
// nil if there are none, or if they cannot be determined: users other than root read
// less, and a folder may come from elsewhere without its descriptions. Unless its study is run, it starts no program
// that the study says where to find: the folder may be a stranger's.
func (a *commands) changed(ctx context.Context, f *result.Folder, s *study.Study, series string, run bool) ([]string, error) {
	if series == "" || !isReal(s) || os.Geteuid() != 0 {
		return nil, nil
	}
	var was observe.Description
	if err := result.Load(f.Path("env", series+".json"), &was); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	h, err := host.Open("/")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(observe.Describe(h, programs(ctx, s, a.Version, run)).Diff(was), func(line string) bool {
		return strings.HasPrefix(line, "~") || strings.HasPrefix(line, "tool.") && strings.HasSuffix(line, " → ")
	}), nil
}

// tellOthers says before the first run that the newest record is of another series, and why: the runs of
// all such records are done again.
func (a *commands) tellOthers(ctx context.Context, f *result.Folder, s *study.Study, now *series) error {
	runs, _ := f.Runs() // the engine reports records that cannot be read
	if len(runs) == 0 || now.has(&runs[len(runs)-1]) {
		return nil
	}
	was := runs[len(runs)-1]
	lines, err := a.changed(ctx, f, s, was.Env, true)
	if !slices.Equal(was.Stamp, now.stamp) {
		lines = append(lines, fmt.Sprintf("stamps: %s → %s", strings.Join(was.Stamp, " "), strings.Join(now.stamp, " ")))
	}
	fmt.Fprintln(a.Err, "the newest record is of another machine, or of this one before it changed: such records do not count, and their runs are done again")
	for _, line := range lines {
		fmt.Fprintln(a.Err, "  "+line)
	}
	return err
}

func writeJSONFile(name string, v any) error {
	text, err := json.MarshalIndent(v, "", " ")
	if err == nil {
		err = atomicfile.Write(name, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// machines reads what describe and require have written.
func machines(f *result.Folder) (ms []render.Machine, missed []string, err error) {
	names, err := fs.Glob(os.DirFS(f.Dir()), "env/*.json")
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		var d observe.Description
		if err := result.Load(f.Path(name), &d); err != nil {
			return nil, nil, err
		}
		m := render.Machine{Name: strings.TrimSuffix(filepath.Base(name), ".json")}
		for _, i := range d.Items {
			if i.Missing == "" {
				m.Facts = append(m.Facts, render.Fact{Name: strings.ReplaceAll(i.Name, ".", " "), Value: i.Value})
			}
		}
		ms = append(ms, m)
	}
	if err := result.Load(f.Path(missedFile), &missed); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	return ms, missed, nil
}

// costFile is the cost of observation as measured at the start of a study.
const costFile = "cost.json"

// costGroups is the number of groups of four pieces of two seconds that are measured.
const costGroups = 4

// cost measures the cost of the study's observation to a loop of additions in a cgroup on
// the last CPU, once for each folder.
func (l *labMachine) cost(ctx context.Context, s *study.Study, f *result.Folder) error {
	if _, err := os.Stat(f.Path(costFile)); !s.Observe.Cost || len(driversHere(s)) == 0 || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	p := &study.Part{Role: "cost", Environment: study.Environment{Name: "cost", Driver: study.Cgroup, CPUs: 1},
		Workload: study.Workload{Name: "cost", Builtin: "cpu-burn", Options: "-work=1000000"}}
	e, err := l.maker.Make(ctx, p)
	if err != nil {
		return fmt.Errorf("measure the cost of observation: %w", err)
	}
	defer e.Close() // the maker's error repeats it
	cpus := l.allowed.Numbers()
	last := sample.SetOf(cpus[len(cpus)-1])
	if err := e.Pin([]sample.Set{last}); err != nil {
		return fmt.Errorf("measure the cost of observation: %w", err)
	}
	job, err := l.command(nil, p)
	if err != nil {
		return err
	}
	c, err := observe.Options{Host: l.host, Observe: s.Observe}.Cost(ctx, e, job, last, costGroups)
	if err != nil {
		return err
	}
	return writeJSONFile(f.Path(costFile), c)
}

// costOf returns the measured cost of a folder's study, "" if it was not measured.
func costOf(f *result.Folder) (string, error) {
	var c observe.Cost
	err := result.Load(f.Path(costFile), &c)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return c.String(), nil
}
