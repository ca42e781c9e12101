package main

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// Each file holds go test -json events in "events" and the expected output in
// "want"; its comment ends in "verdict: ok" or "verdict: bad".
func TestTally(t *testing.T) {
	for _, name := range []string{"passes", "failure_in_a_subtest", "group_fails_by_itself",
		"skips_by_name", "skip_without_a_name", "build_failure", "process_dies", "leak_after_the_tests",
		"fuzz_seeds_are_one_test", "nothing_ran", "figures_are_shown", "passes_alone", "fails_again", "a_race_is_not_excused", "a_race_after_the_tests", "a_death_is_not_excused", "too_many_failed"} {
		t.Run(name, func(t *testing.T) {
			a, err := txtar.ParseFile("testdata/" + name + ".txtar")
			if err != nil {
				t.Fatal(err)
			}
			files := map[string]string{}
			for _, f := range a.Files {
				files[f.Name] = string(f.Data)
			}
			var out strings.Builder
			y := newTally(&out)
			y.args = []string{"-race", "-timeout", "10m", "-run", "A/b", "./a", "q/c"}
			if err := y.read(strings.NewReader(files["events"])); err != nil {
				t.Fatal(err)
			}
			if again, second := files["again"]; second {
				var b strings.Builder
				for _, r := range y.second() {
					fmt.Fprintln(&b, strings.Join(r, " "))
				}
				if b.String() != files["runs"] {
					t.Errorf("second runs:\n%s\nwant:\n%s", b.String(), files["runs"])
				}
				if err := y.read(strings.NewReader(again)); err != nil {
					t.Fatal(err)
				}
			}
			ok := y.summary()
			if got := out.String(); got != files["want"] {
				t.Errorf("got:\n%s\nwant:\n%s", got, files["want"])
			}
			verdict := "verdict: bad"
			if ok {
				verdict = "verdict: ok"
			}
			if !strings.HasSuffix(strings.TrimSpace(string(a.Comment)), verdict) {
				t.Errorf("%s, but the fixture says: %s", verdict, a.Comment)
			}
		})
	}
}

func TestRuns(t *testing.T) {
	for args, want := range map[string]string{
		"-race ./...":                   "[[-race ./...]]",
		"-race -- a b -- -p 1 c":        "[[-race a b] [-race -p 1 c]]",
		"-- a":                          "[[a]]",
		"-count 1 -race -- a -- b -- c": "[[-count 1 -race a] [-count 1 -race b] [-count 1 -race c]]",
	} {
		if got := fmt.Sprint(runs(strings.Fields(args))); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}
