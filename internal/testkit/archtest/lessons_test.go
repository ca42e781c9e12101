package archtest

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

const lessons = "docs/design/0002-lessons.md"

// cited matches the page's references to a test: `counter: TestWindow` or, for
// one of its cases, `counter: TestWindow/a short read loses its CPU`.
var cited = regexp.MustCompile("`([a-z0-9/-]+): ((?:Test|Fuzz)[A-Za-z0-9_]+)(?:/([^`]+))?`")

// TestLessonsNameTheirTests: every row of the tables of docs/design/0002-lessons.md
// names a test, and every test named there exists.
func TestLessonsNameTheirTests(t *testing.T) {
	text, err := os.ReadFile(root + "/" + lessons)
	if err != nil {
		t.Fatal(err)
	}
	pkgs, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	problems, n := checkLessons(string(text), pkgs, func(name string) bool {
		_, err := os.Stat(root + "/" + name)
		return err == nil
	})
	for _, p := range problems {
		t.Error(p)
	}
	if n < 30 {
		t.Errorf("only %d tests are named", n)
	}
}

// TestLessonsCanFail runs the check over a page that has each fault once.
func TestLessonsCanFail(t *testing.T) {
	tree := fstest.MapFS{
		"internal/a/a.go":                  {Data: []byte("package a\n\nfunc TestNotATest() {}\n")},
		"internal/a/a_test.go":             {Data: []byte("package a_test\n\nfunc TestReal() { run(\"a case\") }\n\nfunc (k kit) TestMethod() {}\n")},
		"internal/a/testdata/a_script.txt": {Data: nil},
	}
	page := "| lesson | quell | tests |\n|---|---|---|\n" +
		"| fine | x | `a: TestReal`, `a: TestReal/a case`, `a: TestReal/a_script` |\n" +
		"| nothing | x | by inspection |\n" +
		"| typo | x | `a: TestRael` |\n" +
		"| no such case | x | `a: TestReal/another case` |\n" +
		"| elsewhere | x | `b: TestReal` |\n" +
		"| not in a test file | x | `a: TestNotATest` |\n" +
		"| not a function | x | `a: TestMethod` |\n"
	pkgs, err := load(tree)
	if err != nil {
		t.Fatal(err)
	}
	got, n := checkLessons(page, pkgs, func(name string) bool { return tree[name] != nil })
	want := []string{
		`the row "nothing" names no test`,
		"a: TestRael does not exist",
		`a: TestReal has no case "another case"`,
		"b: TestReal does not exist",
		"a: TestNotATest does not exist",
		"a: TestMethod does not exist",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || n != 8 {
		t.Errorf("%d tests named; got:\n%s\nwant:\n%s", n, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// checkLessons reads the page's tables and returns their errors and the number
// of tests that they name. exists reports whether a file exists.
func checkLessons(page string, pkgs []*pkg, exists func(name string) bool) (problems []string, n int) {
	header := true
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			header = true
			continue
		}
		if header || strings.HasPrefix(line, "|---") {
			header = false
			continue
		}
		tests := cited.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 {
			problems = append(problems, fmt.Sprintf("the row %q names no test", strings.TrimSpace(strings.Split(line, "|")[1])))
		}
		for _, m := range tests {
			n++
			if p := missing(m[1], m[2], m[3], pkgs, exists); p != "" {
				problems = append(problems, p)
			}
		}
	}
	return problems, n
}

// missing returns why a test that the page names does not exist, "" if it does.
// A case is a string in the package's tests or a script in its testdata.
func missing(name, test, part string, pkgs []*pkg, exists func(string) bool) string {
	found, inText := false, part == ""
	for _, p := range pkgs {
		if p.name() != name {
			continue
		}
		inText = inText || exists(path.Join(p.dir, "testdata", part+".txt"))
		for _, f := range p.files {
			if !f.test {
				continue
			}
			found = found || strings.Contains(string(f.text), "\nfunc "+test+"(")
			inText = inText || strings.Contains(string(f.text), `"`+part+`"`)
		}
	}
	switch {
	case !found:
		return name + ": " + test + " does not exist"
	case !inText:
		return fmt.Sprintf("%s: %s has no case %q", name, test, part)
	}
	return ""
}
