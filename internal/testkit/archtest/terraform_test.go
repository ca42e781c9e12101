package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// TestTerraform checks that the Terraform files parse and that every reference
// in them has a declaration. It does not check whether a cloud accepts them.
func TestTerraform(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "deploy/terraform/*/*.tf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	byDir := map[string][]*hclsyntax.Body{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, problems := hclparse.NewParser().ParseHCL(text, filepath.Base(name))
		if problems.HasErrors() {
			t.Errorf("%s: %v", name, problems)
			continue
		}
		byDir[filepath.Dir(name)] = append(byDir[filepath.Dir(name)], f.Body.(*hclsyntax.Body))
	}
	for dir, bodies := range byDir {
		there := declared(bodies)
		used := map[string]bool{}
		for _, b := range bodies {
			_ = hclsyntax.VisitAll(b, func(n hclsyntax.Node) hcl.Diagnostics {
				e, ok := n.(hclsyntax.Expression)
				if !ok {
					return nil
				}
				for _, v := range e.Variables() {
					name := reference(v)
					if name != "" && !there[name] {
						t.Errorf("%s: %s: there is no %s", dir, v.SourceRange(), name)
					}
					used[name] = true
				}
				return nil
			})
		}
		for name := range there {
			if strings.HasPrefix(name, "var.") && !used[name] {
				t.Errorf("%s: nothing uses %s", dir, name)
			}
		}
	}
}

// declared returns the names that a module's blocks declare.
func declared(bodies []*hclsyntax.Body) map[string]bool {
	names := map[string]bool{}
	for _, body := range bodies {
		for _, b := range body.Blocks {
			switch b.Type {
			case "variable":
				names["var."+b.Labels[0]] = true
			case "resource":
				names[strings.Join(b.Labels, ".")] = true
			case "data":
				names["data."+strings.Join(b.Labels, ".")] = true
			case "locals":
				for name := range b.Body.Attributes {
					names["local."+name] = true
				}
			}
		}
	}
	return names
}

// reference returns the name of the block that a traversal starts at, "" if it
// needs no block: count, each, and an expression's own variables.
func reference(v hcl.Traversal) string {
	attr := func(i int) string {
		if i < len(v) {
			if a, ok := v[i].(hcl.TraverseAttr); ok {
				return "." + a.Name
			}
		}
		return ""
	}
	switch first := v.RootName(); {
	case first == "var" || first == "local" || strings.HasPrefix(first, "aws_"):
		return first + attr(1)
	case first == "data":
		return first + attr(1) + attr(2)
	}
	return ""
}
