package cli

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
)

func TestSim(t *testing.T) {
	t.Parallel()
	args := strings.Fields("sim --scenario llc/bursts/strong/* --rule evidence --trial 3m --for 90m --seed 3 --json")
	one, two := quell(t, utf8(""), args...), quell(t, utf8(""), append(args, "--workers", "3")...)
	if one.code != exitOK || one.err != "" {
		t.Fatalf("exit code %d, stderr %q", one.code, one.err)
	}
	if one.out != two.out {
		t.Errorf("two plays of one seed differ:\n%s\n%s", one.out, two.out)
	}
	var r struct {
		Rule                                    string
		Cases, Samples, Victims, Accusations    int
		Precision, Recall, Top1, Outliers, Seed float64
	}
	if err := json.Unmarshal([]byte(one.out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Rule != "evidence" || r.Cases != 4 || r.Victims < 4 || r.Accusations == 0 || r.Precision < 0.9 || r.Seed != 3 {
		t.Errorf("%+v", r)
	}
	if other := quell(t, utf8(""), strings.Fields("sim --scenario llc/bursts/strong/* --rule evidence --trial 3m --for 90m --seed 4 --json")...); other.out == one.out {
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
		if r := quell(t, utf8(""), strings.Fields(args)...); r.code != exitUsage || !strings.Contains(r.err, says) {
			t.Errorf("%s: exit code %d, %q", args, r.code, r.err)
		}
	}
}

func TestSimListsFamilies(t *testing.T) {
	t.Parallel()
	r := quell(t, utf8(""), "sim", "--list")
	if n := strings.Count(r.out, "\n"); r.code != exitOK || n < 200 || !strings.Contains(r.out, "llc/onset/mild/plain") {
		t.Errorf("exit code %d, %d families", r.code, n)
	}
}

// TestSimTrace: a recorded trace can be read back completely, with its labels.
func TestSimTrace(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "t.csv")
	r := quell(t, utf8(""), strings.Fields("sim --scenario llc/bursts/strong/plain --for 90m --json --trace "+name)...)
	if r.code != exitOK {
		t.Fatalf("exit code %d, %q", r.code, r.err)
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
	if err := json.Unmarshal([]byte(r.out), &report); err != nil {
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
