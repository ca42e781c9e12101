package archtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
)

// module is the import path of the tree's root.
const module = "github.com/quell-dev/quell"

// pkg is a directory of Go files.
type pkg struct {
	dir   string // "internal/core/sample"
	files []*file
}

type file struct {
	name      string // from the root
	text      []byte
	ast       *ast.File
	set       *token.FileSet
	test      bool
	generated bool
}

// name returns the package's name in the table.
func (p *pkg) name() string { return strings.TrimPrefix(p.dir, "internal/") }

// at returns a node's position, for a message.
func (f *file) at(n ast.Node) string {
	pos := f.set.Position(n.Pos())
	return pos.String()
}

// imports returns the file's imports: local name to path.
func (f *file) imports() map[string]string {
	m := map[string]string{}
	for _, s := range f.ast.Imports {
		p := strings.Trim(s.Path.Value, `"`)
		name := path.Base(p)
		if base := path.Base(path.Dir(p)); len(name) > 1 && name[0] == 'v' && name[1] >= '0' && name[1] <= '9' {
			name = base // math/rand/v2 is rand
		}
		if s.Name != nil {
			name = s.Name.Name
		}
		m[name] = p
	}
	return m
}

// loaded is this tree, which the tests only read.
var loaded = sync.OnceValues(func() ([]*pkg, error) { return load(os.DirFS(root)) })

// load parses every Go file below cmd and internal. testdata is skipped as the
// go command does.
func load(tree fs.FS) ([]*pkg, error) {
	var pkgs []*pkg
	byDir := map[string]*pkg{}
	set := token.NewFileSet()
	for _, top := range []string{"cmd", "internal"} {
		if _, err := fs.Stat(tree, top); err != nil {
			continue
		}
		err := fs.WalkDir(tree, top, func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
				return fs.SkipDir
			}
			if d.IsDir() || path.Ext(name) != ".go" {
				return nil
			}
			f := &file{name: name, set: set, test: strings.HasSuffix(name, "_test.go")}
			if f.text, err = fs.ReadFile(tree, name); err != nil {
				return err
			}
			if f.ast, err = parser.ParseFile(set, name, f.text, parser.ParseComments); err != nil {
				return err
			}
			f.generated = ast.IsGenerated(f.ast)
			dir := path.Dir(name)
			if byDir[dir] == nil {
				byDir[dir] = &pkg{dir: dir}
				pkgs = append(pkgs, byDir[dir])
			}
			byDir[dir].files = append(byDir[dir].files, f)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return pkgs, nil
}

func (f *file) lines() int { return bytes.Count(f.text, []byte("\n")) }
