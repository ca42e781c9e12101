package archtest

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	makeRule = regexp.MustCompile(`^([A-Za-z0-9][^:=#\t]*):(?:[^=:]|$)`)
	// What the target help prints.
	makeHelp = regexp.MustCompile(`^[a-z0-9][a-z0-9/ -]*:.*## .`)
)

// TestMakeHelp: make help prints every target, and every target is phony and the other way round.
func TestMakeHelp(t *testing.T) {
	text, err := os.ReadFile(root + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	problems, n := checkMakefile(string(text))
	for _, p := range problems {
		t.Error(p)
	}
	if n < 30 {
		t.Errorf("only %d targets", n)
	}
	got, _ := checkMakefile(".PHONY: gone test old-name\ntest: ## tests\n\ttrue\nold-name: X = 1\nX := 2\nnaked:\n\ttrue\n$(FILE):\n\ttrue\n")
	want := []string{"gone: phony, no target", "naked: not in make help", "naked: not phony", "old-name: phony, no target"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// checkMakefile returns what is wrong with a Makefile's targets, and their number.
func checkMakefile(text string) (problems []string, n int) {
	var phony, targets []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if names, ok := strings.CutPrefix(line, ".PHONY:"); ok {
			phony = append(phony, strings.Fields(names)...)
		}
		m := makeRule.FindStringSubmatch(line)
		if m == nil || makeVariable.MatchString(line) {
			continue
		}
		for _, name := range strings.Fields(m[1]) {
			targets = append(targets, name)
			if !makeHelp.MatchString(line) {
				problems = append(problems, fmt.Sprintf("%s: not in make help", name))
			}
			if !slices.Contains(phony, name) {
				problems = append(problems, fmt.Sprintf("%s: not phony", name))
			}
		}
	}
	for _, name := range phony {
		if !slices.Contains(targets, name) {
			problems = append(problems, fmt.Sprintf("%s: phony, no target", name))
		}
	}
	slices.Sort(problems)
	return problems, len(targets)
}

// makeVariable is a variable of some targets.
var makeVariable = regexp.MustCompile(`^[^:]*: [A-Za-z_]+ \??=`)
