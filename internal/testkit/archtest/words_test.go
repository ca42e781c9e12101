package archtest

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// riddles are words that do not name the thing they are about, each with what to write
// instead.
var riddles = []struct{ word, instead string }{
	{"nobody", "no task, no process, no one of the suspects"},
	{"somebody", "the task, another process"},
	{"whom", "the task that"},
	{"whoever", "the task that"},
	{"beside", "next to, with, in addition to, compared with"},
	{"spoilt", "malformed"},
	{"by the median", "median"},
	{"dear", "expensive"},
}

var riddle = func() *regexp.Regexp {
	var words []string
	for _, r := range riddles {
		words = append(words, regexp.QuoteMeta(r.word))
	}
	return regexp.MustCompile(`(?i)\b(` + strings.Join(words, "|") + `)\b`)
}()

// mentions reports whether a text may have one of the riddles. It is much faster than riddle with
// the race detector, and most texts have none.
func mentions(text string) bool {
	text = strings.ToLower(text)
	for _, r := range riddles {
		if strings.Contains(text, r.word) {
			return true
		}
	}
	return false
}

// instead is what to write for a riddle.
func instead(word string) string {
	for _, r := range riddles {
		if strings.EqualFold(r.word, word) {
			return r.instead
		}
	}
	return ""
}

// checkWords: comments, and strings of three words or more that a program prints, name what
// they are about. The word "nobody" is a stored value in some strings.
func checkWords(_ *pkg, f *file, report func(string, ...any)) {
	if f.generated || strings.HasPrefix(f.name, "internal/testkit/archtest/") {
		return
	}
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			if !mentions(c.Text) {
				continue
			}
			// Quoted words and the name of what is documented are code.
			text := quoted.ReplaceAllString(c.Text, "")
			if words := strings.Fields(text); len(words) > 1 && c == group.List[0] {
				text = strings.Join(words[2:], " ")
			}
			for _, word := range riddle.FindAllString(text, -1) {
				report("%s: %q in a comment: %s", f.at(c), word, instead(word))
			}
		}
	}
	if f.test {
		return
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING || !mentions(lit.Value) {
			return true
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil || len(strings.Fields(text)) < 3 {
			return true
		}
		for _, word := range riddle.FindAllString(text, -1) {
			if !strings.EqualFold(word, "nobody") {
				report("%s: %q in a string: %s", f.at(lit), word, instead(word))
			}
		}
		return true
	})
}

var quoted = regexp.MustCompile(`"[^"\n]*"`)

// code is what a page shows of programs: blocks and spans.
var code = regexp.MustCompile("(?ms)^```.*?^```|^(    |\t).*?$|`[^`\n]*`")

// TestPagesNameThings: the pages and the help of commands name what they are about, as
// comments do. The changelog says what was said then, examples what programs wrote.
func TestPagesNameThings(t *testing.T) {
	tree := os.DirFS(root)
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "bin" || d.Name() == "changelog" || d.Name() == "examples" || len(d.Name()) > 1 && d.Name()[0] == '.') {
			return fs.SkipDir
		}
		if path.Ext(name) != ".md" && path.Base(path.Dir(name)) != "help" || name == "docs/metrics.md" { // its table is the code's
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil || !mentions(string(text)) {
			return err
		}
		for n, line := range strings.Split(code.ReplaceAllStringFunc(string(text), func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) }), "\n") {
			for _, word := range riddle.FindAllString(line, -1) {
				t.Errorf("%s:%d: %q: %s", name, n+1, word, instead(word))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
