package labcmd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/lab/study"
)

// The versions of well-known tools are in the machine's description, also where the tool
// prints its version and fails; a study's own program is not started for that.
func TestVersionsOfTools(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return file
	}
	s := &study.Study{Workloads: map[string]study.Workload{
		"a":    {Command: []string{script("fio", `[ "$1" = --version ] && echo fio-3.33`), "job"}},
		"b":    {Command: []string{script("wrk", "echo 'wrk 4.1.0 [epoll]'; echo Usage; exit 1")}},
		"c":    {Command: []string{script("run", "touch "+dir+"/started"), "mcf"}},
		"gone": {Command: []string{dir + "/sysbench"}},
	}}
	want := map[string]string{"quell.version": "v1", "tool.fio": "fio-3.33", "tool.wrk": "wrk 4.1.0 [epoll]"}
	if d := cmp.Diff(want, programs(t.Context(), s, "v1")); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if _, err := os.Stat(dir + "/started"); err == nil {
		t.Error("a study's own program was started for its version")
	}
}
