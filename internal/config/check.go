package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// walk calls fn for every key that has a value of its own, in order.
func walk(prefix string, t reflect.Type, fn func(key string, f reflect.StructField)) {
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("key")
		switch {
		case name == "":
		case f.Type.Kind() == reflect.Struct:
			walk(join(prefix, name)+".", f.Type, fn)
		default:
			fn(join(prefix, name), f)
		}
	}
}

// check holds the values of a struct against the ranges in its tags.
func check(prefix string, s any) []Problem {
	var ps []Problem
	root := reflect.ValueOf(s).Elem()
	walk(prefix, root.Type(), func(key string, f reflect.StructField) {
		v := root
		for part := range strings.SplitSeq(strings.TrimPrefix(key, prefix), ".") {
			v, _ = fieldOf(v, part)
		}
		if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String {
			for i := range v.Len() {
				ps = append(ps, checkOne(fmt.Sprintf("%s[%d]", key, i), f, v.Index(i))...)
			}
			return
		}
		ps = append(ps, checkOne(key, f, v)...)
	})
	return ps
}

func checkOne(key string, f reflect.StructField, v reflect.Value) []Problem {
	if words := strings.Fields(f.Tag.Get("oneof")); len(words) > 0 && !slices.Contains(words, v.String()) {
		return []Problem{{Key: key, Value: fmt.Sprintf("%q", v.String()), Want: "one of " + strings.Join(words, ", ")}}
	}
	lo, hi := f.Tag.Get("min"), f.Tag.Get("max")
	if lo == "" {
		return nil
	}
	a, b := reflect.New(v.Type()).Elem(), reflect.New(v.Type()).Elem()
	if parse(a, lo) != nil || parse(b, hi) != nil || inRange(v, a, b) {
		return nil
	}
	return []Problem{{Key: key, Value: fmt.Sprint(v.Interface()), Want: lo + " to " + hi}}
}

func inRange(v, lo, hi reflect.Value) bool {
	switch x := v.Interface().(type) {
	case time.Duration:
		return x >= lo.Interface().(time.Duration) && x <= hi.Interface().(time.Duration)
	case int:
		return x >= lo.Interface().(int) && x <= hi.Interface().(int)
	case float64:
		return x >= lo.Float() && x <= hi.Float()
	}
	return true
}

// Reference writes the defaults as a commented YAML file: what the docs show
// and `quell-agent config` prints.
func Reference() string {
	a := Default()
	var b strings.Builder
	section(&b, "", reflect.ValueOf(&a).Elem())
	return b.String()
}

func section(b *strings.Builder, indent string, v reflect.Value) {
	t := v.Type()
	for i := range t.NumField() {
		f, val := t.Field(i), v.Field(i)
		name := f.Tag.Get("key")
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
		if rules, ok := val.Interface().([]Rule); ok {
			fmt.Fprintf(b, "%s%s:\n", indent, name)
			for j := range rules {
				rule(b, indent+"  ", &rules[j])
			}
			continue
		}
		fmt.Fprintf(b, "%s%s: %s\n", indent, name, literal(val))
	}
}

// rule writes a rule on one line, the keys that are set.
func rule(b *strings.Builder, indent string, r *Rule) {
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
	switch x := v.Interface().(type) {
	case string:
		return fmt.Sprintf("%q", x)
	case []string:
		return "[" + strings.Join(x, ", ") + "]"
	}
	return fmt.Sprint(v.Interface())
}
