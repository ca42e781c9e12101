// Command tally runs `go test -json` with its arguments, prints failed tests in full
// and a line for each package, and ends with a summary: the figures that tests
// logged, the failed tests, the skipped tests with the capability that each misses,
// and on the last line
//
//	N passed, N failed, N skipped
//
// Arguments after a "--" are a separate run, with those before the first one:
//
//	tally -race -- ./pure ./other -- -p 1 ./alone
//
// It exits with 1 if a test failed, a package did not build, or a skip names no
// capability ("needs NAME: why").
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"time"
)

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
	for _, r := range runs(args) {
		ok, err := t.goTest(r)
		if err != nil {
			return false, err
		}
		all = all && ok
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

// goTest counts the tests of one run. It returns false where go test failed and
// no package did: wrong arguments, for example.
func (t *tally) goTest(args []string) (bool, error) {
	before := t.failedPackages
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
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
	return waitErr == nil || t.failedPackages > before, nil
}
