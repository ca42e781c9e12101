package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

const root = "../../.."

func check(r rule, pkgs []*pkg) []string {
	var problems []string
	r.check(pkgs, func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf(format, args...))
	})
	slices.Sort(problems)
	return problems
}

func TestRules(t *testing.T) {
	pkgs, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 5 {
		t.Fatalf("found only %d packages below %s", len(pkgs), root)
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, p := range check(r, pkgs) {
				t.Error(p)
			}
		})
	}
}

// TestRulesCanFail runs each rule over a tree that breaks it: the file "want"
// lists, by rule, exactly what must be found.
func TestRulesCanFail(t *testing.T) {
	a, err := txtar.ParseFile("testdata/bad.txtar")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := txtar.FS(a)
	if err != nil {
		t.Fatal(err)
	}
	pkgs, err := load(tree)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, r := range rules {
		problems := check(r, pkgs)
		if len(problems) == 0 {
			t.Errorf("rule %q finds nothing in the bad tree", r.name)
		}
		fmt.Fprintf(&got, "%s\n", r.name)
		for _, p := range problems {
			fmt.Fprintf(&got, "\t%s\n", p)
		}
	}
	want := string(a.Files[slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == "want" })].Data)
	if got.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
	}
}

// TestTableIsAnOrder checks that each row imports only rows above it and gives a reason.
func TestTableIsAnOrder(t *testing.T) {
	var above []string
	for _, r := range table {
		for _, m := range words(r.may) {
			if !slices.Contains(above, m) {
				t.Errorf("%s imports %s, which is not above it", r.pkg, m)
			}
			if m, _ := lookup(m); r.core && !m.core {
				t.Errorf("%s is core and imports %s, which is not", r.pkg, m.pkg)
			}
		}
		if r.why == "" {
			t.Errorf("%s gives no reason", r.pkg)
		}
		if r.core && r.outside != "" {
			t.Errorf("%s is core and imports %s", r.pkg, r.outside)
		}
		above = append(above, r.pkg)
	}
}
