package study

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

func TestSchemaIsPublished(t *testing.T) {
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "../../../../docs/study.schema.json", string(text))
}

// compiled is the schema as an editor would use it.
func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("study.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("study.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func holds(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	var doc any
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	return s.Validate(doc)
}

// The schema accepts what Parse accepts, and rejects errors that an editor can detect.
func TestSchema(t *testing.T) {
	s := compiled(t)
	files, err := filepath.Glob("../../../studies/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	files = append(files, "testdata/pinning.yaml")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\nstudy:") {
			continue // a file of expected values
		}
		if err := holds(t, s, string(text)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	text, err := os.ReadFile("testdata/pinning.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		"driver: lxc":       "driver: docker",
		"step: 5%":          "step: 5",
		"hold: 3m":          "hold: 180",
		"memory: 512MiB":    "memory: 512",
		"measure: true":     "measured: true",
		"repetitions: 2":    "repetitions: two",
		"relation: neutral": "relations: neutral",
		"study: pinning":    "name: pinning",
	} {
		if !strings.Contains(string(text), from) {
			t.Fatalf("no %q in it", from)
		}
		if holds(t, s, strings.Replace(string(text), from, to, 1)) == nil {
			t.Errorf("%q is taken", to)
		}
	}
}
