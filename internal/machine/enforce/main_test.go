package enforce

import (
	"fmt"
	"os"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// childMode makes the test binary run one of the children instead of tests.
const childMode = "QUELL_ENFORCE_CHILD"

func TestMain(m *testing.M) {
	mode := os.Getenv(childMode)
	if mode == "" {
		quelltest.Main(m)
		return
	}
	if err := children()[mode](); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func children() map[string]func() error {
	return map[string]func() error{
		"full":      childFull,
		"read-only": childReadOnly,
		"lock":      childLock,
	}
}
