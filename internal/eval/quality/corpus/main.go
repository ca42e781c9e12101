// Corpus records real programs that hurt each other, together with the truth (make corpus):
// scenes of two victims, innocents and antagonists that come and go, in cgroups, sampled by
// quell-agent. A victim counts its own work; if that is a tenth less than in the calm
// stretches before and after, it was hurt.
//
// Each scene is a labelled trace, NAME.csv.gz. Existing ones are not played again, so an
// interrupted recording can be continued.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/format/atomicfile"
	"github.com/quell-dev/quell/internal/format/trace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "corpus:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	out := flag.String("out", "testdata/corpus", "folder of the recordings")
	only := flag.String("only", "", "play only scenes whose names begin with this, such as test, tuning-03 or innocence; empty: all except innocence")
	agent := flag.String("agent", "bin/quell-agent", "path of quell-agent")
	list := flag.Bool("list", false, "list the scenes, play nothing")
	score := flag.Bool("score", false, "print how often each rule is right on the recordings, play nothing")
	rules := rivals.Names()
	flag.Func("rules", "with -score: rules to play, separated by commas (default: all); evidence-look_back is evidence without that switch", func(names string) error {
		rules = nil
		for name := range strings.SplitSeq(names, ",") {
			rules = append(rules, detect.Method(name))
		}
		return nil
	})
	long := flag.Bool("v", false, "with -score: list the wrong, late and missing accusations of the default rule")
	flag.Parse()
	if *score {
		return printScore(os.Stdout, *out, *only, rules, *long)
	}
	all, err := allScenes()
	if err != nil {
		return err
	}
	var todo []scene
	length := 0
	for _, s := range all {
		if !strings.HasPrefix(s.name, *only) || *only == "" && s.half == innocence {
			continue
		}
		if *list {
			fmt.Println(s.String())
		}
		if _, err := os.Stat(s.file(*out)); errors.Is(err, fs.ErrNotExist) {
			todo = append(todo, s)
			length += s.length()
		}
	}
	fmt.Fprintf(os.Stderr, "%d scenes to play, %s\n", len(todo), time.Duration(length)*interval)
	if *list || len(todo) == 0 {
		return nil
	}
	if err := missingPackages(todo); err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	for i := range todo {
		s := &todo[i]
		p := &recorder{agent: *agent, tell: func(done int) {
			fmt.Fprintf(os.Stderr, "\r[%d of %d] %s: %3d of %d s ", i+1, len(todo), s.name, done, s.length())
		}}
		rec, err := p.play(ctx, s)
		if err != nil {
			return fmt.Errorf("\n%s: %w", s.name, err)
		}
		if err := rec.save(s.file(*out)); err != nil {
			return fmt.Errorf("\n%s: %w", s.name, err)
		}
		fmt.Fprintf(os.Stderr, "\r%s: %d labels, %d stretches left out, %d samples, %.2f CPU-s/s outside\n", s.name, len(rec.labels), len(rec.unknown), len(rec.samples), rec.others)
	}
	return nil
}

func (s *scene) file(dir string) string { return filepath.Join(dir, s.name+".csv.gz") }

// String describes the contents of a scene.
func (s *scene) String() string {
	var b strings.Builder
	names := func(all []*program) string {
		var words []string
		for _, p := range all {
			words = append(words, p.Name)
		}
		return strings.Join(words, "+")
	}
	fmt.Fprintf(&b, "%s: %s with %s, float %v", s.name, names(s.victims), names(s.innocents), s.float)
	if s.on == onLink {
		fmt.Fprintf(&b, ", htb %v", s.htb)
	}
	b.WriteByte(':')
	for _, one := range s.stages {
		fmt.Fprintf(&b, " %s(%s)", one.shape, names(one.antagonists))
	}
	return b.String()
}

// missingPackages returns an error that names the packages which the scenes need and the machine
// lacks.
func missingPackages(all []scene) error {
	var packages []string
	need := func(ps []*program) {
		for _, p := range ps {
			_, err := exec.LookPath(p.Needs)
			if err != nil && p.Name == "postgres" {
				if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench"); len(found) > 0 {
					continue
				}
			}
			if err != nil {
				packages = append(packages, p.Packages...)
			}
		}
	}
	link := &program{Needs: "tc", Packages: []string{"iproute2"}}
	for i := range all {
		if all[i].on == onLink {
			need([]*program{link})
		}
		need(all[i].victims)
		need(all[i].innocents)
		for _, one := range all[i].stages {
			need(one.antagonists)
		}
	}
	if len(packages) == 0 {
		return nil
	}
	slices.Sort(packages)
	return fmt.Errorf("missing programs: apt-get install -y --no-install-recommends %s", strings.Join(slices.Compact(packages), " "))
}

// save writes a recording as a labelled trace, completely or not at all.
func (r *sceneRecording) save(file string) error {
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	fmt.Fprintf(zip, "# %s\n", r.scene)
	for _, v := range r.scene.victims {
		fmt.Fprintf(zip, "# %s: %.1f pieces of work a second at first\n", v.Name, r.rates[v.Name])
	}
	fmt.Fprintf(zip, "# %.2f CPU-s/s were used outside\n", r.others)
	for i := range r.stretches {
		fmt.Fprintf(zip, "%s%s\n", stretchMark, &r.stretches[i])
	}
	if err := errors.Join(trace.WriteAll(zip, r.samples, r.labels, r.unknown), zip.Close()); err != nil {
		return err
	}
	return atomicfile.Write(file, b.Bytes(), 0o644)
}
