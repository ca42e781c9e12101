package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Reference writes the defaults as a commented YAML file: the docs show it and
// `quell-agent config` prints it.
func Reference() string { return reference(Default()) }

func reference(defaults any) string {
	var b strings.Builder
	section(&b, "", reflect.ValueOf(defaults))
	return b.String()
}

func section(b *strings.Builder, indent string, v reflect.Value) {
	for _, f := range reflect.VisibleFields(v.Type()) {
		name, val := f.Tag.Get("key"), v.FieldByIndex(f.Index)
		if name == "" {
			continue
		}
		if val.Kind() == reflect.Struct {
			fmt.Fprintf(b, "%s%s:\n", indent, name)
			section(b, indent+"  ", val)
			continue
		}
		help := f.Tag.Get("help")
		if lo := f.Tag.Get("min"); lo != "" {
			help += fmt.Sprintf(" (%s to %s)", lo, f.Tag.Get("max"))
		}
		fmt.Fprintf(b, "%s# %s\n", indent, help)
		if rules, ok := val.Interface().([]Matcher); ok {
			fmt.Fprintf(b, "%s%s:\n", indent, name)
			for j := range rules {
				rule(b, indent+"  ", &rules[j])
			}
			continue
		}
		fmt.Fprintf(b, "%s%s: %s\n", indent, name, literal(val))
	}
}

// rule writes the keys of a rule that are set, on one line.
func rule(b *strings.Builder, indent string, r *Matcher) {
	v := reflect.ValueOf(r).Elem()
	var parts []string
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("key")
		if name != "" && (name == "class" || !v.Field(i).IsZero()) {
			parts = append(parts, name+": "+literal(v.Field(i)))
		}
	}
	fmt.Fprintf(b, "%s- {%s}\n", indent, strings.Join(parts, ", "))
}

func literal(v reflect.Value) string {
	if v.Kind() == reflect.String {
		return fmt.Sprintf("%q", v.String())
	}
	if words, ok := v.Interface().([]string); ok {
		return "[" + strings.Join(words, ", ") + "]"
	}
	return fmt.Sprint(v.Interface())
}
