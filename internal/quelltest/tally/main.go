// Command tally runs `go test -json` with its own arguments and keeps the
// output readable: a line per package, failures in full, and at the end what
// tests logged after "figure: ", every skipped test with the capability it
// misses and, alone on the last line,
//
//	N passed, N failed, N skipped
//
// It exits with 1 if a test failed, a package did not build, or a test was
// skipped without naming what it needs ("needs NAME: reason").
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
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
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	t := newTally(w)
	readErr := t.read(events)
	// go test's own verdict counts too: it sees what has no event.
	waitErr := cmd.Wait()
	if readErr != nil {
		return false, fmt.Errorf("read go test -json: %w", readErr)
	}
	fmt.Fprintf(w, "\n%.0f s\n", time.Since(start).Seconds())
	ok := t.summary()
	return ok && waitErr == nil, nil
}
