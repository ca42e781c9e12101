package quelltest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Program builds one of quell's programs without C, quell-agent or quell, as it
// is shipped and returns its path. [Main] removes it. A second call before that
// does not link it again.
func Program(t testing.TB, name string) string {
	t.Helper()
	Need(t, "go")
	file := filepath.Join(programs(), name)
	// With the Makefile's flags, so that both share what is compiled.
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file, "github.com/quell-dev/quell/cmd/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return file
}

// programs is the folder of this process's programs.
func programs() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("quell-test-bin-%d", os.Getpid()))
}
