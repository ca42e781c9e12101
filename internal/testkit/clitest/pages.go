package clitest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// PageCommand is a command line that a page shows.
type PageCommand struct {
	Page string
	Line int
	Args []string // without the program
}

// Pages tests that each command line of a program in the pages for users (README.md and docs/, without
// design notes and changelog) has a command, flags and values that the program accepts. It runs none.
// root returns a new root command, whose name is the program's.
func Pages(t *testing.T, repo string, least int, root func() *cobra.Command) {
	t.Helper()
	all := PageCommands(t, repo, root().Name())
	for _, c := range all {
		cmd, rest, err := root().Find(c.Args)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		switch {
		case errors.Is(err, pflag.ErrHelp):
			err = nil
		case err == nil:
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s:%d: %s: %v", c.Page, c.Line, strings.Join(c.Args, " "), err)
		}
	}
	if len(all) < least {
		t.Errorf("only %d command lines found", len(all))
	}
}

// shellPrefix is what may be in front of a program: a prompt, variables, sudo, a time limit, a folder.
var shellPrefix = regexp.MustCompile(`^(\$ )?([A-Z_]+=\S* )*(sudo )?(timeout \S+ )?(\S*bin/)?`)

// PageCommands returns the command lines of a program in blocks of code.
func PageCommands(t *testing.T, repo, program string) (all []PageCommand) {
	t.Helper()
	files := []string{"README.md", "CONTRIBUTING.md"}
	err := fs.WalkDir(os.DirFS(repo), "docs", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "design" || d.Name() == "changelog") {
			return fs.SkipDir
		}
		if strings.HasSuffix(name, ".md") && name != "docs/ARCHITECTURE.md" {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range files {
		text, err := os.ReadFile(filepath.Join(repo, page))
		if err != nil {
			t.Fatal(err)
		}
		fenced, joined := false, ""
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
				continue
			}
			if !fenced && !strings.HasPrefix(line, "    ") {
				continue
			}
			line = joined + strings.TrimSpace(line)
			if before, more := strings.CutSuffix(line, `\`); more {
				joined = before
				continue
			}
			joined = ""
			words := shellWords(shellPrefix.ReplaceAllString(line, ""))
			if len(words) > 1 && words[0] == program {
				all = append(all, PageCommand{page, i + 1, words[1:]})
			}
		}
	}
	return all
}

// shellWords splits the first command of a line as a shell does, without expansions.
func shellWords(line string) (words []string) {
	word, in, quote := "", false, rune(0)
	end := func() {
		if in {
			words = append(words, word)
		}
		word, in = "", false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '"' || r == '\'':
			quote, in = r, true
		case r == ' ' || r == '\t':
			end()
		case strings.ContainsRune("|;&<>", r), r == '#' && !in:
			end()
			return words
		default:
			word, in = word+string(r), true
		}
	}
	end()
	return words
}
