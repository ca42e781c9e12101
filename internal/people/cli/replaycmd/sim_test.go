package replaycmd

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

func TestSim(t *testing.T) {
	t.Parallel()
	args := strings.Fields("sim --scenario llc/bursts/strong/* --rule evidence --trial 3m --for 90m --seed 3 --json")
	one, two := quell(t, clitest.Env(""), args...), quell(t, clitest.Env(""), append(args, "--workers", "3")...)
	if one.Code != app.ExitOK || one.Err != "" {
		t.Fatalf("exit code %d, stderr %q", one.Code, one.Err)
	}
	if one.Out != two.Out {
		t.Errorf("two plays of one seed differ:\n%s\n%s", one.Out, two.Out)
	}
	var r struct {
		Rule                                    string
		Cases, Samples, Victims, Accusations    int
		Precision, Recall, Top1, Outliers, Seed float64
	}
	if err := json.Unmarshal([]byte(one.Out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Rule != "evidence" || r.Cases != 4 || r.Victims < 4 || r.Accusations == 0 || r.Precision < 0.9 || r.Seed != 3 {
		t.Errorf("%+v", r)
	}
	if other := quell(t, clitest.Env(""), strings.Fields("sim --scenario llc/bursts/strong/* --rule evidence --trial 3m --for 90m --seed 4 --json")...); other.Out == one.Out {
		t.Error("another seed says the same")
	}
}

func TestSimRefuses(t *testing.T) {
	for args, says := range map[string]string{
		"sim --scenario luck":    "unknown scenario",
		"sim --scenario [":       "syntax error in pattern",
		"sim --rule luck":        `rule "luck"`,
		"sim --enforcement luck": `mode "luck"`,
		"sim --machines 0":       "at least one machine",
		"sim --for 1s":           "at least one machine and one minute",
	} {
		if r := quell(t, clitest.Env(""), strings.Fields(args)...); r.Code != app.ExitUsage || !strings.Contains(r.Err, says) {
			t.Errorf("%s: exit code %d, %q", args, r.Code, r.Err)
		}
	}
}

func TestSimListsFamilies(t *testing.T) {
	t.Parallel()
	r := quell(t, clitest.Env(""), "sim", "--list")
	if n := strings.Count(r.Out, "\n"); r.Code != app.ExitOK || n < 200 || !strings.Contains(r.Out, "llc/onset/mild/plain") {
		t.Errorf("exit code %d, %d families", r.Code, n)
	}
}

// TestSimTrace: a recorded trace can be read back completely, with its labels.
func TestSimTrace(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "t.csv")
	r := quell(t, clitest.Env(""), strings.Fields("sim --scenario llc/bursts/strong/plain --for 90m --json --trace "+name)...)
	if r.Code != app.ExitOK {
		t.Fatalf("exit code %d, %q", r.Code, r.Err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in, err := trace.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for {
		var s sample.Sample
		if err := in.Read(&s); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		rows++
	}
	var report struct{ Samples int }
	if err := json.Unmarshal([]byte(r.Out), &report); err != nil {
		t.Fatal(err)
	}
	labels, labelled := in.Labels()
	if !labelled || len(labels) == 0 || rows != report.Samples {
		t.Errorf("%d rows of %d samples, %d labels", rows, report.Samples, len(labels))
	}
	for _, l := range labels {
		if l.Cause != "llc" || l.Antagonist == "" || l.To <= l.From {
			t.Errorf("label %+v", l)
		}
	}
}
