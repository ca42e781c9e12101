//go:build inguest

package xen

import (
	"encoding/csv"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	tools "github.com/quell-dev/quell/internal/lab/xen"
)

// TestStudy: the shipped quell runs studies/net-io-small-xen.yaml to its report, with three of
// its cases, and with bounds for an emulated machine whose only CPU the load generators share.
func TestStudy(t *testing.T) {
	text, err := os.ReadFile("/study.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		drop := false
		for _, name := range []string{`"(1,idle)"`, `"(1,1)"`, `"(100,100)"`, "  exclude:"} {
			drop = drop || strings.Contains(line, name)
		}
		if !drop {
			lines = append(lines, line)
		}
	}
	study := filepath.Join(t.TempDir(), "study.yaml")
	changed := strings.NewReplacer(`cpus: "1"`, `cpus: "0"`, "/boot/vmlinuz-6.1.0-50-amd64", kernel(t), "max_foreign_cpu: 15%, max_steal: 50%", "max_foreign_cpu: 100%, max_steal: 100%").
		Replace(strings.Join(lines, ""))
	if err := os.WriteFile(study, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	quell := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "/bin/quell", append([]string{"lab"}, args...)...)
		cmd.Env = append(os.Environ(), calm, "HOME=/tmp")
		said, err := cmd.CombinedOutput()
		if err != nil {
			console(t)
			t.Fatalf("quell lab %s: %v\n%s", args[0], err, said)
		}
		return string(said)
	}
	t.Log(quell("run", "--out", out+"/results", "--journal", out+"/journal", study))
	quell("report", "--format", "csv,md", "--out", out+"/report", out+"/results")
	files, err := filepath.Glob(out + "/report/*.csv")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	table, err := os.Open(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	in := csv.NewReader(table)
	in.Comment, in.FieldsPerRecord = '#', -1
	rows, err := in.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	// analysis, quantity, cell, part, at, unit, value
	values := map[string]float64{}
	for _, r := range rows[1:] {
		if v, err := strconv.ParseFloat(r[6], 64); err == nil && r[0] == "net-io" {
			values[strings.Join([]string{r[1], r[2], r[3], r[4]}, "|")] = v
			t.Logf("figure: %s of %s %s %s: %.4g %s", r[1], r[2], r[3], r[4], v, r[5])
		}
	}
	for _, rate := range []string{"max", "50%"} {
		for _, of := range []string{"(1)|load1", "(100)|load1", "(1,100)|load1", "(1,100)|load2"} {
			for _, quantity := range []string{"throughput", "net I/O", "CPU", "events", "switches", "pages", "pages per execution", "waiting", "blocked", "executions",
				"first domain's CPU", "first domain's waiting", "first domain's blocked"} {
				name := quantity + "|" + of + "|" + rate
				if v, ok := values[name]; !ok || quantity != "first domain's blocked" && v <= 0 {
					t.Errorf("%s is %v, %v", name, v, ok)
				}
			}
		}
	}
	if s := values["score|(1,100)||"]; s <= 0 || s > 2.2 {
		t.Errorf("combined score %v", s)
	}
	if all := list(t, tools.Tools{}); len(all) != 1 {
		t.Errorf("domains %q are left", all)
	}
}
