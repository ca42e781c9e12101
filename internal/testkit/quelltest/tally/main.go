// Command tally reads what `go test -json` writes, also several times in a row. It shows
// failed tests in full and a line for each package, and ends with a summary: the figures
// that tests logged, the failed tests, the skipped tests with the capability that each
// misses, and on the last line
//
//	N passed, N failed, N skipped
//
// It exits with 1 if a test failed in any of the runs, a package did not build, a skip names no
// capability ("needs NAME: why"), no test ran, or go test failed and no package did, because of
// wrong arguments for example. The Makefile reports that go test failed as the event {"Action":"exit"}.
package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	start := time.Now()
	t := newTally(os.Stdout)
	if err := t.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "tally: read go test -json:", err)
		os.Exit(1)
	}
	fmt.Printf("\n%.0f s\n", time.Since(start).Seconds())
	if !t.summary() {
		os.Exit(1)
	}
}
