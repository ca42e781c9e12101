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

	"github.com/quell-dev/quell/internal/lab/result"
	tools "github.com/quell-dev/quell/internal/lab/xen"
)

// quell runs the shipped program.
func quell(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/quell", append([]string{"lab"}, args...)...)
	cmd.Env = append(os.Environ(), calm, "HOME=/tmp")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout // seen while it runs
	if err := cmd.Run(); err != nil {
		console(t)
		t.Fatalf("quell lab %s: %v", args[0], err)
	}
}

// played runs a study of /studies to its end and returns the folder of its results. Its lines
// with the words in without are left out. Its bounds become those of an emulated machine whose
// only CPU everything shares; changes are further replacements, of pairs.
func played(t *testing.T, name string, without []string, changes ...string) string {
	t.Helper()
	text, err := os.ReadFile("/studies/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for line := range strings.Lines(string(text)) {
		keep := true
		for _, word := range without {
			keep = keep && !strings.Contains(line, word)
		}
		if keep {
			lines.WriteString(line)
		}
	}
	changes = append(changes, "/boot/vmlinuz-6.1.0-50-amd64", kernel(t), "max_foreign_cpu: 15%, max_steal: 50%", "max_foreign_cpu: 100%, max_steal: 100%")
	study := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(study, []byte(strings.NewReplacer(changes...).Replace(lines.String())), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	quell(t, "run", "--out", dir+"/results", "--journal", dir+"/journal", study)
	if all := list(t, tools.Tools{}); len(all) != 1 {
		t.Errorf("domains %q are left", all)
	}
	return dir + "/results"
}

// TestWebServersOfTwoGuests: net-io-small-xen, three of its cases, to its report: all measures
// of the servers, and the first domain's, are from Xen's records.
func TestWebServersOfTwoGuests(t *testing.T) {
	dir := played(t, "net-io-small-xen.yaml", []string{`"(1,idle)"`, `"(1,1)"`, `"(100,100)"`, "  exclude:"}, `cpus: "1"`, `cpus: "0"`,
		// An open loop does not keep its schedule, with the only CPU shared.
		"rate: [max, 50%]", "rate: [max]")
	report := t.TempDir()
	quell(t, "report", "--format", "csv", "--out", report, dir)
	files, err := filepath.Glob(report + "/*.csv")
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
	values := map[string]float64{} // analysis, quantity, cell, part, at, unit, value
	for _, r := range rows[1:] {
		if v, err := strconv.ParseFloat(r[6], 64); err == nil && r[0] == "net-io" {
			values[strings.Join(r[1:5], "|")] = v
			t.Logf("figure: %s of %s: %.4g %s", r[1], strings.Join(r[2:5], " "), v, r[5])
		}
	}
	for _, of := range []string{"(1)|load1", "(100)|load1", "(1,100)|load1", "(1,100)|load2"} {
		for _, quantity := range []string{"throughput", "net I/O", "CPU", "events", "switches", "pages", "pages per execution", "waiting", "blocked", "executions",
			"first domain's CPU", "first domain's waiting", "first domain's blocked"} {
			name := quantity + "|" + of + "|max"
			if v, ok := values[name]; !ok || v < 0 || v == 0 && !strings.HasSuffix(quantity, "blocked") {
				t.Errorf("%s is %v, %v", name, v, ok)
			}
		}
	}
	if s := values["score|(1,100)||"]; s <= 0 || s > 2.2 {
		t.Errorf("combined score %v", s)
	}
}

// TestStealAndItsCause: noisy-neighbour-small-xen, a guest alone and with a busy one: the
// guest's kernel reports steal, Xen that its domain waited for the CPU as long, while its
// neighbour and the first domain had it.
func TestStealAndItsCause(t *testing.T) {
	dir := played(t, "noisy-neighbour-small-xen.yaml", []string{"  exclude:", "- {neighbours"}, `["0", "1", "2", "3"]`, `["0", "1"]`, "[busy, idle]", "[busy]",
		"aa_pairs: 1", "aa_pairs: 0", "repetitions: 3", "repetitions: 1")
	f, err := result.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := f.Runs()
	if err != nil {
		t.Fatal(err)
	}
	shares := map[string]share{}
	for i := range runs {
		r := &runs[i]
		if r.Verdict != result.Valid {
			t.Errorf("%s: %s, %v", r.CellKey, r.Verdict, r.Evidence)
			continue
		}
		neighbours := r.Cell.Level("neighbours")
		s := shareOf(t, f, r)
		shares[neighbours] = s
		t.Logf("figure: %s neighbours: stolen of the guest's time, by its kernel at its end %.3f, each second %.3f (clock within %s); by Xen it waited %.3f, its neighbour ran %.3f, the first domain %.3f",
			neighbours, s.inside, s.seconds, r.Hosts[0].Within, s.waited, s.neighbour, s.first)
		for what, v := range map[string]float64{"by Xen it waited": s.waited, "others ran": s.neighbour + s.first, "its kernel says each second": s.seconds} {
			if d := v - s.inside; d < -0.1 || d > 0.1 {
				t.Errorf("%s neighbours: %s %.3f, and %.3f was stolen", neighbours, what, v, s.inside)
			}
		}
	}
	if alone, with := shares["0"], shares["1"]; !(alone.neighbour == 0 && with.neighbour > 0.2 && with.inside > alone.inside+0.1) {
		t.Errorf("alone %+v, with a neighbour %+v", alone, with)
	}
}

// share is where a guest's time went, as shares of it.
type share struct{ inside, seconds, waited, neighbour, first float64 }

func shareOf(t *testing.T, f *result.Folder, r *result.Run) (s share) {
	t.Helper()
	for _, p := range r.Parts {
		if p.Role == "nb" {
			s.neighbour = p.Events[result.DomainRunning] / p.Events[result.DomainSpan]
			continue
		}
		s.inside = p.Values["guest.steal"] / (p.Values["guest.steal"] + p.Values["guest.busy"] + p.Values["guest.idle"])
		span := p.Events[result.DomainSpan]
		s.waited, s.first = p.Events[result.DomainWaiting]/span, p.Events[result.DriverRunning]/span
	}
	samples, err := f.Samples(r)
	if err != nil {
		t.Fatal(err)
	}
	n := 0.0
	for _, one := range samples {
		if v, ok := one.Values["cpu.steal"]; ok && one.Host == "test" && one.At > r.Window.From && one.At <= r.Window.To {
			s.seconds, n = s.seconds+v, n+1
		}
	}
	if n == 0 || len(r.Hosts) == 0 {
		t.Fatalf("nothing was observed inside the guest: %d samples, hosts %+v", len(samples), r.Hosts)
	}
	s.seconds /= n
	return s
}
