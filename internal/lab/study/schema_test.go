package study

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/quell-dev/quell/internal/format/keyed"
)

func TestSchemaIsPublished(t *testing.T) {
	text, err := schemaText()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "../../../../docs/study.schema.json", string(text))
}

// compiled is the schema as an editor would use it.
func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := schemaText()
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

// schema is the part of JSON Schema that is used here.
type schema struct {
	Schema      string             `json:"$schema,omitempty"`
	Title       string             `json:"title,omitempty"`
	Description string             `json:"description,omitempty"`
	Type        any                `json:"type,omitempty"` // a name or a list of names
	Enum        []string           `json:"enum,omitempty"`
	Pattern     string             `json:"pattern,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Additional  any                `json:"additionalProperties,omitempty"` // a schema or false
	Items       *schema            `json:"items,omitempty"`
	AnyOf       []*schema          `json:"anyOf,omitempty"`
	Required    []string           `json:"required,omitempty"`
}

// schemaText is the JSON Schema (draft 2020-12) of study files, for editors, generated from
// the tags that the reader uses. Parse checks more: the keys must also be consistent. It is
// here because only these tests write and check it.
func schemaText() ([]byte, error) {
	s := schemaOf(reflect.TypeFor[Study]())
	s.Schema, s.Title = "https://json-schema.org/draft/2020-12/schema", "study of quell lab"
	s.Required = []string{"version", "study", "environments", "workloads", "roles"}
	text, err := json.MarshalIndent(s, "", "  ")
	return append(text, '\n'), err
}

// word is any scalar that YAML writes without quotes; the reader takes its text.
func word() *schema { return &schema{Type: []string{"string", "number", "boolean"}} }

func schemaOf(t reflect.Type) *schema {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return &schema{Type: "string", Pattern: `^([0-9.]+(ns|us|µs|ms|s|m|h))+$`}
	case reflect.TypeFor[Share]():
		return &schema{Type: "string", Pattern: `^-?[0-9.]+ *%$`}
	case reflect.TypeFor[Bytes]():
		return &schema{Type: "string", Pattern: `^[0-9.]+ *([KMG]i?)?B$`}
	case reflect.TypeFor[Rate]():
		return &schema{Type: "string", Pattern: `^[0-9.]+ *[GMk]?bit(/s)?$`}
	case reflect.TypeFor[Price]():
		return &schema{Type: "string", Pattern: `^[0-9.]+ +[A-Za-z0-9][A-Za-z0-9_.-]*$`}
	case reflect.TypeFor[Set]():
		return &schema{Type: "object", Additional: word()}
	case reflect.TypeFor[Factor]():
		return &schema{AnyOf: []*schema{
			{Type: "array", Items: word()},
			{Type: "array", Items: schemaOf(reflect.TypeFor[Placement]())},
			object(t),
		}}
	case reflect.TypeFor[Analysis]():
		s := object(t)
		s.Additional, s.Required = word(), []string{"kind"}
		return s
	}
	switch t.Kind() {
	case reflect.Struct:
		return object(t)
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Map:
		return &schema{Type: "object", Additional: schemaOf(t.Elem())}
	case reflect.Slice:
		if t != reflect.TypeFor[[]Placement]() && reflect.PointerTo(t.Elem()).Implements(reflect.TypeFor[keyed.Named]()) {
			return &schema{Type: "object", Additional: schemaOf(t.Elem())}
		}
		return &schema{Type: "array", Items: schemaOf(t.Elem())}
	case reflect.Bool:
		return &schema{Type: "boolean"}
	case reflect.Int, reflect.Uint64:
		return &schema{Type: "integer"}
	case reflect.Float64:
		return &schema{Type: "number"}
	}
	return word()
}

// object is the schema with the keys of a struct and no others.
func object(t reflect.Type) *schema {
	s := &schema{Type: "object", Properties: map[string]*schema{}, Additional: false}
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("key")
		if key == "" || key == "-" {
			continue
		}
		p := schemaOf(f.Type)
		p.Description = f.Tag.Get("help")
		if words := strings.Fields(f.Tag.Get("oneof")); len(words) > 0 {
			one := &schema{Type: "string", Enum: words}
			if p.Type == "array" {
				p.Items = one
			} else {
				p.Type, p.Enum = one.Type, one.Enum
			}
		}
		s.Properties[key] = p
	}
	return s
}
