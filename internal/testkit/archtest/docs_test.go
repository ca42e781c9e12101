package archtest

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	heading = regexp.MustCompile("(?m)^### `([a-z0-9/-]+)`")
	link    = regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
)

// TestArchitectureNamesEveryPackage: docs/ARCHITECTURE.md has a section for
// every package there is and no other, in the order of the table.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	pkgs, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
		got = append(got, m[1])
	}
	for _, r := range table {
		if slices.ContainsFunc(pkgs, func(p *pkg) bool { return p.name() == r.pkg }) {
			want = append(want, r.pkg)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("sections:\n%s\nwant, in this order:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestLinks checks that every link to a file in the repository has a target.
func TestLinks(t *testing.T) {
	for _, dead := range deadLinks(t, root) {
		t.Error(dead)
	}
	dir := t.TempDir()
	page := "[here](page.md) [gone](no/such.md) [away](https://example.org/x.md) [part](page.md#a)"
	if err := os.WriteFile(filepath.Join(dir, "page.md"), []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := deadLinks(t, dir); len(got) != 1 || !strings.Contains(got[0], "no/such.md") {
		t.Errorf("in a page with one dead link these were found: %q", got)
	}
}

func deadLinks(t *testing.T, dir string) (dead []string) {
	t.Helper()
	tree := os.DirFS(dir)
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "bin" || len(d.Name()) > 1 && d.Name()[0] == '.') {
			return fs.SkipDir
		}
		if path.Ext(name) != ".md" {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], ":") {
				continue
			}
			if _, err := fs.Stat(tree, path.Join(path.Dir(name), m[1])); errors.Is(err, fs.ErrNotExist) {
				dead = append(dead, name+": "+m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dead
}
