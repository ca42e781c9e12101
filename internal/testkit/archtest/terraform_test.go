package archtest

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// TestTerraform checks that the Terraform files parse, that they have the form that terraform
// fmt writes, that every reference in them has a declaration, and that blocks have the
// arguments that their providers have. It does not check whether a cloud accepts them.
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
		if formatted := hclwrite.Format(text); !bytes.Equal(formatted, text) {
			t.Errorf("%s is not formatted; it should be\n%s", name, formatted)
		}
		byDir[filepath.Dir(name)] = append(byDir[filepath.Dir(name)], f.Body.(*hclsyntax.Body))
	}
	for dir, bodies := range byDir {
		there := declared(bodies)
		for _, problem := range wrongArguments(t, bodies) {
			t.Errorf("%s: %s", dir, problem)
		}
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

// wrongArguments are the arguments of resources and data sources that their providers do not
// have, and the required ones that are not given.
func wrongArguments(t *testing.T, bodies []*hclsyntax.Body) (problems []string) {
	t.Helper()
	text, err := os.ReadFile("testdata/terraform-arguments.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] != "#" {
			known[f[0]] = f[1:]
		}
	}
	var check func(kind string, b *hclsyntax.Body)
	check = func(kind string, b *hclsyntax.Body) {
		args := known[kind]
		has := func(name string) bool { return slices.Contains(args, name) || slices.Contains(args, name+"!") }
		for name := range b.Attributes {
			if !has(name) && name != "count" {
				problems = append(problems, kind+" has no argument "+name)
			}
		}
		for _, inner := range b.Blocks {
			if !has(inner.Type) {
				problems = append(problems, kind+" has no block "+inner.Type)
			}
			check(kind+"."+inner.Type, inner.Body)
		}
		for _, a := range args {
			if name, required := strings.CutSuffix(a, "!"); required && b.Attributes[name] == nil {
				problems = append(problems, kind+" lacks its argument "+name)
			}
		}
	}
	for _, body := range bodies {
		for _, b := range body.Blocks {
			if b.Type == "resource" || b.Type == "data" {
				check(b.Labels[0], b.Body)
			}
		}
	}
	return problems
}

// The check of arguments finds a name that no provider knows and a required one that is missing.
func TestWrongTerraformArguments(t *testing.T) {
	f, problems := hclparse.NewParser().ParseHCL([]byte(`
resource "aws_ec2_host" "a" {
  affinity = "host"
}
data "aws_subnets" "b" {
  filters {}
}
`), "bad.tf")
	if problems.HasErrors() {
		t.Fatal(problems)
	}
	got := wrongArguments(t, []*hclsyntax.Body{f.Body.(*hclsyntax.Body)})
	want := []string{"aws_ec2_host has no argument affinity", "aws_ec2_host lacks its argument availability_zone", "aws_subnets has no block filters"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
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
	case first == "var" || first == "local" || strings.HasPrefix(first, "aws_") || strings.HasPrefix(first, "tls_"):
		return first + attr(1)
	case first == "data":
		return first + attr(1) + attr(2)
	}
	return ""
}
