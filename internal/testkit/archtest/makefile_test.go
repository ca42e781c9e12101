package archtest

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
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

// TestLintVetsEveryTag: make lint compiles the tests with every build tag that there is. Those of a
// target that CI does not run are compiled nowhere else.
func TestLintVetsEveryTag(t *testing.T) {
	text, err := os.ReadFile(root + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	pkgs, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	problems, n := checkTags(string(text), pkgs)
	for _, p := range problems {
		t.Error(p)
	}
	if n < 10 {
		t.Errorf("only %d tags", n)
	}
	tree := fstest.MapFS{
		"internal/a/a_test.go": {Data: []byte("//go:build guests && (node || gone)\n\npackage a\n")},
		"internal/b/b_test.go": {Data: []byte("//go:build !amd64\n\npackage b\n")},
		"internal/c/c_test.go": {Data: []byte("//go:build late\n\npackage c\n")},
	}
	if pkgs, err = load(tree); err != nil {
		t.Fatal(err)
	}
	got, n := checkTags("TAGGED = $(shell grep '^//go:build (guests)')\nlint:\n\tgo vet -tags guests,node,late $(TAGGED)\n", pkgs)
	want := []string{"internal/a/a_test.go: make lint does not vet with gone", "internal/c/c_test.go: make lint does not find its tag late"}
	if !slices.Equal(got, want) || n != 5 {
		t.Errorf("%d tags: got %q, want %q", n, got, want)
	}
}

var (
	buildLine = regexp.MustCompile(`(?m)^//go:build (.*)$`)
	buildTag  = regexp.MustCompile(`[a-z][a-z0-9_]*`)
	vetTags   = regexp.MustCompile(`go vet -tags (\S+) \$\(TAGGED\)`)
	foundTags = regexp.MustCompile(`TAGGED = .*//go:build \(([a-z|]+)\)`)
)

// checkTags returns the tests with a build tag that make lint does not vet, and the number of tags.
func checkTags(makefile string, pkgs []*pkg) (problems []string, n int) {
	vets, finds := vetTags.FindStringSubmatch(makefile), foundTags.FindStringSubmatch(makefile)
	if vets == nil || finds == nil {
		return []string{"make lint vets no tags"}, 0
	}
	vetted, first := strings.Split(vets[1], ","), strings.Split(finds[1], "|")
	seen := map[string]bool{}
	for _, p := range pkgs {
		for _, f := range p.files {
			m := buildLine.FindStringSubmatch(string(f.text))
			if m == nil || !f.test || f.generated || strings.HasPrefix(m[1], "inguest") { // that is vetted for another architecture
				continue
			}
			tags := buildTag.FindAllString(m[1], -1)
			for i, tag := range tags {
				seen[tag] = true
				switch {
				case slices.Contains(words("amd64 arm64 linux"), tag):
				case !slices.Contains(vetted, tag):
					problems = append(problems, fmt.Sprintf("%s: make lint does not vet with %s", f.name, tag))
				case i == 0 && !slices.Contains(first, tag): // it greps for lines that begin with the tag
					problems = append(problems, fmt.Sprintf("%s: make lint does not find its tag %s", f.name, tag))
				}
			}
		}
	}
	slices.Sort(problems)
	return problems, len(seen)
}

// makeVariable is a variable of some targets.
var makeVariable = regexp.MustCompile(`^[^:]*: [A-Za-z_]+ \??=`)
