// Command tally runs `go test -json` with its arguments, keeps the output readable
// and sums up at the end: figures that tests logged, every skipped test with the
// capability it misses, and on the last line
//
//	N passed, N failed, N skipped
//
// Arguments after a "--" are a run of its own, with those before the first one:
//
//	tally -race -- ./pure ./other -- -p 1 ./alone
//
// With -again first, a few tests that failed are run once more, alone, and listed if
// they pass then; not after a data race, a panic or a timeout. It exits with 1 if a
// test failed, a package did not build, or a skip names no need ("needs NAME: why").
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// again is in the environment of second runs: tests in virtual time, which would do
// the same again, begin elsewhere then.
const again = "QUELL_TEST_AGAIN"

func main() {
	ok, err := run(os.Stdout, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run(w io.Writer, args []string) (bool, error) {
	start := time.Now()
	t := newTally(w)
	all := true
	second := len(args) > 0 && args[0] == "-again"
	if second {
		args = args[1:]
	}
	for _, r := range runs(args) {
		ok, err := t.goTest(r)
		if err != nil {
			return false, err
		}
		all = all && ok
	}
	if second {
		for _, r := range t.second() {
			fmt.Fprintf(w, "\nonce more, alone: go test %s\n", strings.Join(r, " "))
			if _, err := t.goTest(r, again+"=1"); err != nil {
				return false, err
			}
		}
	}
	fmt.Fprintf(w, "\n%.0f s\n", time.Since(start).Seconds())
	return t.summary() && all, nil
}

// runs cuts the arguments at each "--".
func runs(args []string) (all [][]string) {
	i := slices.Index(args, "--")
	if i < 0 {
		return [][]string{args}
	}
	common, rest := args[:i:i], args[i+1:]
	for i >= 0 {
		run := rest
		if i = slices.Index(rest, "--"); i >= 0 {
			run, rest = rest[:i], rest[i+1:]
		}
		all = append(all, append(common, run...))
	}
	return all
}

// goTest takes in one run. It returns false where go test itself was not content
// and no event says why.
func (t *tally) goTest(args []string, env ...string) (bool, error) {
	t.args = args
	before := t.failures
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	readErr := t.read(events)
	waitErr := cmd.Wait()
	if readErr != nil {
		return false, fmt.Errorf("read go test -json: %w", readErr)
	}
	return waitErr == nil || t.failures > before, nil
}
