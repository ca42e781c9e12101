package enforce

import (
	"errors"
	"testing"
)

// A file that was empty (cpuset.cpus of a cgroup2 that has not been placed) is
// emptied again, by the process that changed it and after a crash. The change
// must declare that the file was empty.
func TestAFileThatWasEmptyIsEmptiedAgain(t *testing.T) {
	w := oneDir()
	w.values["/cg/a/x"] = ""
	e := mustStart(t, w)
	c := w.change("A", "/cg/a", "x")
	if err := e.Apply(2000, c); !errors.Is(err, ErrRefused) {
		t.Fatalf("without a word on it: %v, want ErrRefused", err)
	}
	c.Writes[0].Empty = true
	must(t, e.Apply(2000, c))
	if v := w.values["/cg/a/x"]; v != "A-0" {
		t.Fatalf("file holds %q", v)
	}
	crashed := w.clone()
	if out, err := e.Undo(3000, "A", "test"); err != nil || out.Result != Restored || w.values["/cg/a/x"] != "" {
		t.Errorf("undone: %v, %v, file holds %q", out.Result, err, w.values["/cg/a/x"])
	}
	if out, err := mustStart(t, crashed).RestoreAll(3000, "test"); err != nil || len(out) != 1 || out[0].Result != Restored ||
		crashed.values["/cg/a/x"] != "" {
		t.Errorf("after a crash: %v, %v, file holds %q", out, err, crashed.values["/cg/a/x"])
	}
	c.Writes[0].Old = "0-1"
	if err := e.Apply(4000, c); !errors.Is(err, ErrRefused) {
		t.Errorf("said to be empty and is not: %v, want ErrRefused", err)
	}
}
