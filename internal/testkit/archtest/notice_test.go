package archtest

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// linked is a module of which some package is linked into a shipped program.
type linked struct{ Path, Version, Dir string }

// linkedModules lists the modules that are linked into the three programs. quell-server has one
// module for each architecture (duckdb-go-bindings/lib/linux-amd64), under one licence; only that
// of amd64 is read, since the other is a download of 100 MB.
func linkedModules() ([]linked, error) {
	pkgs, err := programs()
	if err != nil {
		return nil, err
	}
	all := map[linked]bool{}
	for _, p := range pkgs {
		if m := p.module; m.Path != "" && !p.main {
			m.Path = strings.Replace(m.Path, "/linux-amd64", "/linux-*", 1)
			all[m] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b linked) int { return strings.Compare(a.Path, b.Path) }), nil
}

// legal matches the files of a module that say under which terms it may be passed on.
var legal = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|unlicense)([.-].*)?$`)

// licences are the kinds that may be linked, by what their texts contain.
var licences = []struct{ name, text string }{
	{"Apache-2.0", "Apache License\n Version 2.0"},
	{"MPL-2.0", "Mozilla Public License Version 2.0"},
	{"BSD-3-Clause", "Neither the name of"},
	{"BSD-3-Clause", "names of its contributors may be used"},
	{"BSD-2-Clause", "Redistribution and use in source and binary forms"},
	{"MIT", "Permission is hereby granted, free of charge"},
	{"ISC", "Permission to use, copy, modify, and/or distribute this software"},
	{"Unlicense", "This is free and unencumbered software"},
	{"CC0-1.0", "CC0 1.0 Universal"},
}

// plain is a text with one blank for any white space.
func plain(text string) string { return strings.Join(strings.Fields(text), " ") }

// licenceOf names the licence of a text; "" if it is none of those.
func licenceOf(text string) string {
	text = plain(text)
	for _, l := range licences {
		if strings.Contains(text, plain(l.text)) {
			return l.name
		}
	}
	return ""
}

// notice is the file NOTICE: every linked module with its licence, and the texts, each once.
func notice(modules []linked) (string, []string, error) {
	var list, texts strings.Builder
	var problems []string
	number := map[string]int{}
	for _, m := range modules {
		entries, err := os.ReadDir(m.Dir)
		if err != nil {
			return "", nil, err
		}
		kind, refs := "", []string{}
		for _, e := range entries {
			if e.IsDir() || !legal.MatchString(e.Name()) {
				continue
			}
			raw, err := os.ReadFile(filepath.Join(m.Dir, e.Name()))
			if err != nil {
				return "", nil, err
			}
			text := strings.TrimSpace(strings.ReplaceAll(string(raw), "\r\n", "\n"))
			if kind == "" {
				kind = licenceOf(text)
			}
			if number[text] == 0 {
				number[text] = len(number) + 1
				fmt.Fprintf(&texts, "\n\n======== [%d] ========\n\n%s\n", number[text], text)
			}
			refs = append(refs, fmt.Sprintf("[%d]", number[text]))
		}
		if kind == "" {
			problems = append(problems, fmt.Sprintf("%s %s has no licence that is known here: read it, and add its kind to licences or drop the module", m.Path, m.Version))
		}
		fmt.Fprintf(&list, "%s: %s %s\n", strings.TrimSpace(m.Path+" "+m.Version), kind, strings.Join(refs, " "))
	}
	return `quell's programs contain the following modules, and the standard library of Go. After each name
is its licence, and the numbers of the texts below.
Made by: go test ./internal/testkit/archtest -run Notice -update

` + list.String() + strings.TrimRight(texts.String(), "\n") + "\n", problems, nil
}

// TestNotice: NOTICE, which is part of every release, names every linked module and has the
// text of its licence. A module without a licence that is known here fails.
func TestNotice(t *testing.T) {
	modules, err := linkedModules()
	if err != nil {
		t.Fatal(err)
	}
	goroot, err := exec.Command("go", "env", "GOROOT", "GOVERSION").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir, _, _ := strings.Cut(string(goroot), "\n")
	modules = append([]linked{{"Go's standard library", "", dir}, {"uPlot", "v1.6.32", root + "/internal/people/dashboard/web/uplot"}}, modules...)
	got, problems, err := notice(modules)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
	const file = root + "/NOTICE"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Error("NOTICE is out of date: go test ./internal/testkit/archtest -run Notice -update")
	}
}

// TestNoticeCanFail checks a module without a licence, and one with an unknown licence.
func TestNoticeCanFail(t *testing.T) {
	bare, odd, good := t.TempDir(), t.TempDir(), t.TempDir()
	for name, text := range map[string]string{odd + "/LICENSE.md": "All rights reserved.", good + "/COPYING": "Permission is hereby granted,\n  free of charge, to any person"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, problems, err := notice([]linked{{"a", "v1", bare}, {"b", "v1", odd}, {"c", "v1", good}, {"d", "v1", good}})
	if err != nil || len(problems) != 2 || !strings.HasPrefix(problems[0], "a v1") || !strings.HasPrefix(problems[1], "b v1") {
		t.Errorf("%q, %v", problems, err)
	}
	if !strings.Contains(text, "c v1: MIT [2]\nd v1: MIT [2]\n") || strings.Count(text, "Permission is") != 1 {
		t.Errorf("%s", text)
	}
}
