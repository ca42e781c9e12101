package clitest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Man writes the man pages of a program's commands in a section ("1": commands of users, "8": those
// of administrators), and tests that each command and flag is in one. The pages have no date, so
// that the same commit gives the same bytes. With dir empty they are only tested.
func Man(t *testing.T, root *cobra.Command, section, dir string) {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	dir = filepath.Join(dir, "man"+section)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root.DisableAutoGenTag = true
	epoch := time.Unix(0, 0)
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: section, Source: "quell", Manual: "quell", Date: &epoch}, dir); err != nil {
		t.Fatal(err)
	}
	pages := 0
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if !c.IsAvailableCommand() && c != root {
			return
		}
		pages++
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		text, err := os.ReadFile(filepath.Join(dir, name+"."+section))
		if err != nil {
			t.Error(err)
			return
		}
		page := strings.ReplaceAll(string(text), `\-`, "-")
		if !strings.Contains(page, name+" - "+c.Short) {
			t.Errorf("%s: the page does not have %q", name, c.Short)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	t.Logf("%d man pages", pages)
}
