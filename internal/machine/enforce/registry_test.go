package enforce

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A journal that was noted is found by others until it is forgotten. One that is not at its
// path, which another mount namespace may have, is named; after a reboot none is left.
func TestRegistryFindsOthersJournals(t *testing.T) {
	dir := t.TempDir()
	r, w := Registry{filepath.Join(dir, "made/journals")}, newWorld(nil)
	if journals, unreachable, err := r.Others("", w); len(journals)+len(unreachable) > 0 || err != nil {
		t.Errorf("without a registry: %q, %q, %v", journals, unreachable, err)
	}
	var made []string
	for _, name := range []string{"one", "other", "deleted", "replaced"} {
		journal := filepath.Join(dir, name)
		if err := os.Mkdir(journal, 0o700); err != nil {
			t.Fatal(err)
		}
		for range 2 { // every start
			if err := r.Note(journal, w); err != nil {
				t.Fatal(err)
			}
		}
		made = append(made, journal)
	}
	// The inode of the replaced one stays in use, so that it is not given out again.
	if err := os.Rename(made[3], made[3]+"-moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(made[3], 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(made[2]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.Dir+"/torn.json", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	journals, unreachable, err := r.Others(made[0], w)
	slices.Sort(unreachable)
	if err != nil || !slices.Equal(journals, made[1:2]) || len(unreachable) != 3 || unreachable[0] != made[2] ||
		!strings.HasSuffix(unreachable[1], "torn.json (damaged)") || unreachable[2] != made[3] {
		t.Errorf("others: %q, unreachable %q, %v", journals, unreachable, err)
	}
	for range 2 {
		if err := r.Forget(made[1]); err != nil {
			t.Error(err)
		}
	}
	if journals, _, err := r.Others("", w); err != nil || !slices.Equal(journals, made[:1]) {
		t.Errorf("after one was forgotten: %q, %v", journals, err)
	}
	w.boot = "boot-2"
	if journals, unreachable, err := r.Others("", w); err != nil || len(journals) > 0 || len(unreachable) != 1 {
		t.Errorf("after a reboot: %q, %q, %v", journals, unreachable, err)
	}
}

// A registry that others may write to could lead a restore, which is root's, anywhere.
func TestRegistryIsPrivate(t *testing.T) {
	dir := t.TempDir()
	r, w := Registry{dir + "/journals"}, newWorld(nil)
	if err := os.Mkdir(r.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(r.Dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Others("", w); err == nil || !strings.Contains(err.Error(), "writable by others") {
		t.Errorf("others: %v", err)
	}
	if err := r.Note(dir, w); err == nil || !strings.Contains(err.Error(), "writable by others") {
		t.Errorf("note: %v", err)
	}
}
