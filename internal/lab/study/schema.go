package study

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/format/keyed"
)

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

// Schema is the JSON Schema (draft 2020-12) of study files, for editors, generated from
// the tags that the reader uses. Parse checks more: the keys must also be consistent.
func Schema() ([]byte, error) {
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
