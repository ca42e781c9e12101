package archtest

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// attack is a line of attacks.tsv.
type attack struct {
	number             int
	dir, test, promise string
}

func parseAttacks(text string) (all []attack, problems []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 || f[3] == "" {
			problems = append(problems, fmt.Sprintf("%q: want a number, a package, a test and a promise", line))
			continue
		}
		n, err := strconv.Atoi(f[0])
		if last := len(all) - 1; err != nil || n < 1 || last >= 0 && (n < all[last].number || n > all[last].number+1) || last < 0 && n != 1 {
			problems = append(problems, fmt.Sprintf("%q: the numbers are not in order", line))
		}
		all = append(all, attack{n, f[1], f[2], f[3]})
	}
	return all, problems
}

// namedTests are the tests that a page names.
var namedTests = regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9]*)`")

// checkAttacks returns where the list of attacks, the tests of the tree, and the page disagree.
func checkAttacks(list, page string, tree fs.FS) (problems []string) {
	all, problems := parseAttacks(list)
	tests := map[string]string{} // the text of the tests, by folder
	for _, a := range all {
		if _, ok := tests[a.dir]; !ok {
			files, err := fs.Glob(tree, path.Join(a.dir, "*_test.go"))
			if err != nil {
				return append(problems, err.Error())
			}
			for _, name := range files {
				text, err := fs.ReadFile(tree, name)
				if err != nil {
					return append(problems, err.Error())
				}
				tests[a.dir] += "\n" + string(text)
			}
		}
		if !strings.Contains(tests[a.dir], "\nfunc "+a.test+"(") {
			problems = append(problems, fmt.Sprintf("%s: no such test in %s", a.test, a.dir))
		}
		if !strings.Contains(page, "`"+a.test+"`") {
			problems = append(problems, a.test+": not on the page")
		}
	}
	for _, m := range namedTests.FindAllStringSubmatch(page, -1) {
		if !slices.ContainsFunc(all, func(a attack) bool { return a.test == m[1] }) {
			problems = append(problems, m[1]+": not in the list")
		}
	}
	return problems
}

// TestAttacks: every test in attacks.tsv exists, and docs/security.md names the same tests.
func TestAttacks(t *testing.T) {
	list, err := os.ReadFile("attacks.tsv")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(root + "/docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range checkAttacks(string(list), string(page), os.DirFS(root)) {
		t.Error(p)
	}
	tree := fstest.MapFS{"a/x_test.go": {Data: []byte("package a\n\nfunc TestOne(t *testing.T) {}\nfunc FuzzTwo(f *testing.F) {}\n")}}
	got := checkAttacks("# of them\n1\ta\tTestOne\tp\n1\ta\tTestGone\tp\n3\ta\tFuzzTwo\tp\n4\tb\tTestOne\n", "`TestOne` `TestGone` `FuzzThree` `Testing`", tree)
	want := []string{`"3\ta\tFuzzTwo\tp": the numbers are not in order`, `"4\tb\tTestOne": want a number, a package, a test and a promise`,
		"TestGone: no such test in a", "FuzzTwo: not on the page", "FuzzThree: not in the list"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
