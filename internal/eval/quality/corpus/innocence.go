package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/replay"
)

// innocenceCase is a scene in which a victim suffers and no task that could be named caused it:
// every accusation of a task is wrong.
type innocenceCase struct {
	scene
	why string
}

// ordeals are the cases of innocence (design 0008, "From served to blame").
func ordeals() []innocenceCase {
	serve := func(name, before, heavy string) *program {
		return &program{name: name, half: test, needs: "python3", packages: []string{"python3"}, phases: true, run: before + `exec python3 -u -c '
import os, subprocess, time
d, more = os.environ["D"], []
while True:
    heavy = os.path.exists(d + "/heavy")
    if heavy and not more: more = [` + heavy + `]
    if not heavy:
        for p in more: p.kill()
        more = []
    sum(i * i for i in range(20000))
    print()
    time.sleep(0.004)'`}
	}
	// steady uses half a CPU, or as much of that as it gets.
	steady := &program{name: "steady", half: test, needs: "python3", packages: []string{"python3"}, run: `exec python3 -c '
import time
while True:
    end = time.process_time() + 0.01
    while time.process_time() < end: pass
    time.sleep(0.01)'`}
	loop := `"python3", "-c", "while True: pass"`
	popen := `subprocess.Popen([` + loop + `])`
	one := func(name, why string, victim *program, float bool, s stage) innocenceCase {
		return innocenceCase{scene{name: name, half: test, victims: []*program{victim}, innocents: []*program{steady}, float: float, stages: []stage{s}}, why}
	}
	hog := &program{name: "hog", half: test, needs: "taskset", packages: []string{"util-linux"}, cause: "cpu", run: `taskset -c 0 sh -c 'while :; do :; done' & taskset -c 0 sh -c 'while :; do :; done' & wait`}
	return []innocenceCase{
		one("pushed", "a hog on the first CPU displaces an innocent to the last CPU, where the victim runs", serve("serve", "", popen), false, stage{shape: arrives, antagonists: []*program{hog}}),
		one("more-work", "the victim starts three CPU loops of its own", serve("serve", "", popen+","+popen+","+popen), false, stage{shape: phase}),
		one("framing", "200 processes of the victim wait for each other", serve("serve", "", `subprocess.Popen(["stress-ng", "--cpu", "200", "--quiet"])`), false, stage{shape: phase}),
		one("niced", "the victim lowers its own priority (nice 19) and starts more work", serve("serve", "renice -n 19 -p $$ >/dev/null; ", popen), false, stage{shape: phase}),
	}
}

// checkInnocence plays each case the given number of rounds, judges the recording like an
// agent in mode advise, and prints the named tasks. It is not ok if any task was named.
func checkInnocence(ctx context.Context, w io.Writer, agent, only string, rounds int) (ok bool, err error) {
	ok = true
	fmt.Fprintf(w, "| case | rounds | no task named | outliers | named |\n|---|---|---|---|---|\n")
	for _, o := range ordeals() {
		if !strings.HasPrefix(o.name, only) {
			continue
		}
		right, outliers := 0, 0
		var named []string
		for n := range rounds {
			p := &recorder{agent: agent, tell: func(done int) {
				fmt.Fprintf(os.Stderr, "\r%s, round %d of %d: %3d of %d s ", o.name, n+1, rounds, done, o.length())
			}}
			rec, err := p.play(ctx, &o.scene)
			if err != nil {
				return false, fmt.Errorf("%s: %w", o.name, err)
			}
			options, err := replay.Default(detect.EvidenceMethod)
			if err != nil {
				return false, err
			}
			options.ScaleTo(interval)
			options.Spec.MinSamples = specSamples
			r := replay.New(options)
			for i := range rec.samples {
				r.Add(&rec.samples[i])
			}
			result := r.Finish()
			victim := sample.TaskName("/corpus/" + o.victims[0].name)
			who := map[string]bool{}
			for _, a := range result.Accusations {
				// What ran outside is no innocent, and hog is the cause.
				if a.Victim == victim && a.Suspect != detect.OutsideName && a.Suspect != "/corpus/hog" {
					who[fmt.Sprintf("%s by %s", strings.TrimPrefix(string(a.Suspect), "/corpus/"), a.Signal)] = true
				}
			}
			outliers += result.Outliers
			if len(who) == 0 {
				right++
			}
			for name := range who {
				if !slices.Contains(named, name) {
					named = append(named, name)
				}
			}
		}
		slices.Sort(named)
		fmt.Fprintf(w, "| %s: %s | %d | %d | %d | %s |\n", o.name, o.why, rounds, right, outliers, strings.Join(named, ", "))
		ok = ok && right == rounds
	}
	fmt.Fprintf(os.Stderr, "\r%s\r", strings.Repeat(" ", 60))
	return ok, nil
}

// playing returns about how long the given rounds take.
func playing(only string, rounds int) time.Duration {
	n := 0
	for _, o := range ordeals() {
		if strings.HasPrefix(o.name, only) {
			n += rounds * o.length()
		}
	}
	return time.Duration(n) * interval
}
