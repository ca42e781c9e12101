package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/quell-dev/quell/internal/sample"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Key   string // dotted, e.g. "sampling.period" or "rules[2].class"
	Value string // as given
	Want  string // what is allowed
	Where string // file:line, environment variable or flag; "" for a default
}

func (p Problem) String() string {
	s := fmt.Sprintf("%s: %s: want %s", p.Key, p.Value, p.Want)
	if p.Where != "" {
		s = p.Where + ": " + s
	}
	return s
}

// InvalidError lists everything that is wrong.
type InvalidError struct{ Problems []Problem }

func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = "  " + p.String()
	}
	noun := "problems"
	if len(lines) == 1 {
		noun = "problem"
	}
	return fmt.Sprintf("configuration has %d %s; nothing was changed:\n%s", len(lines), noun, strings.Join(lines, "\n"))
}

// Load fills the defaults from a YAML file ("" for none), the environment
// (QUELL_SAMPLING_PERIOD=30s for sampling.period) and key=value settings, and
// validates the result. The error is an *InvalidError that names every
// problem, or says why the file cannot be read.
func Load(file string, environ, settings []string) (*Agent, error) {
	a := Default()
	l := loader{file: file, where: map[string]string{}}
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		if err := l.document(&a, text); err != nil {
			return nil, fmt.Errorf("read configuration %s: %w", file, err)
		}
	}
	l.environment(&a, environ)
	for _, s := range settings {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			l.problem(s, s, "key=value", "--set")
			continue
		}
		l.assign(&a, key, value, "--set")
	}
	for _, p := range a.Validate() {
		p.Where = l.whereOf(p.Key)
		l.problems = append(l.problems, p)
	}
	if len(l.problems) > 0 {
		return nil, &InvalidError{l.problems}
	}
	return &a, nil
}

type loader struct {
	file     string
	problems []Problem
	where    map[string]string // key → where its value came from
}

func (l *loader) problem(key, value, want, where string) {
	l.problems = append(l.problems, Problem{key, value, want, where})
}

// whereOf says where a key's value came from; of a list's element or of a key
// that is missing in one, where the element or the list did.
func (l *loader) whereOf(key string) string {
	if where := l.where[key]; where != "" {
		return where
	}
	if i := strings.LastIndexByte(key, ']'); i >= 0 {
		if i+1 < len(key) {
			return l.whereOf(key[:i+1])
		}
		return l.whereOf(key[:strings.LastIndexByte(key, '[')])
	}
	return ""
}

func (l *loader) at(n *yaml.Node) string { return fmt.Sprintf("%s:%d", l.file, n.Line) }

// document fills the configuration from the one YAML document of the file.
func (l *loader) document(a *Agent, text []byte) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil // nothing but white space and comments
	}
	if err != nil {
		return err
	}
	l.fill("", reflect.ValueOf(a).Elem(), doc.Content[0])
	err = d.Decode(&more)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		l.problem("---", "a second document", "one document in the file", l.at(&more))
	}
	return err
}

// fill sets v, whose key is given, from a YAML node.
func (l *loader) fill(key string, v reflect.Value, n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if key != "" {
		l.where[key] = l.at(n)
	}
	switch {
	case isScalar(v):
		if n.Kind != yaml.ScalarNode {
			l.problem(key, "a "+kindName(n), want(v), l.at(n))
			return
		}
		text := n.Value
		if n.Tag == "!!null" { // also "~" and "null", which are no names
			text = ""
		}
		l.scalar(key, v, text, l.at(n))
	case v.Kind() == reflect.Struct:
		l.mapping(key, v, n)
	case v.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			l.problem(key, "a "+kindName(n), "a list", l.at(n))
			return
		}
		list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
		for i, item := range n.Content {
			l.fill(fmt.Sprintf("%s[%d]", key, i), list.Index(i), item)
		}
		v.Set(list)
	}
}

func (l *loader) mapping(key string, v reflect.Value, n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		if key == "" {
			key = "the whole file"
		}
		l.problem(key, "a "+kindName(n), "keys and values", l.at(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		full := join(key, name)
		field, ok := fieldOf(v, name)
		switch {
		case !ok:
			l.problem(full, "unknown key", "one of "+strings.Join(keysOf(v.Type()), ", "), l.at(n.Content[i]))
		case seen[name]:
			l.problem(full, "given twice", "once", l.at(n.Content[i]))
		default:
			l.fill(full, field, n.Content[i+1])
		}
		seen[name] = true
	}
	// The zero Class would be the one that is capped hardest: nobody is put
	// there by an omission.
	if r, ok := v.Interface().(Rule); ok && !seen["class"] && !r.Ignore {
		l.problem(join(key, "class"), "not given", want(reflect.New(reflect.TypeFor[sample.Class]()).Elem()), l.at(n))
	}
}

func (l *loader) scalar(key string, v reflect.Value, text, where string) {
	l.where[key] = where
	if err := parse(v, text); err != nil {
		l.problem(key, strconv.Quote(text), want(v), where)
	}
}

// assign sets one dotted key; lists of words are comma-separated.
func (l *loader) assign(a *Agent, key, text, where string) {
	v := reflect.ValueOf(a).Elem()
	for part := range strings.SplitSeq(key, ".") {
		if isScalar(v) || v.Kind() != reflect.Struct {
			l.problem(key, "unknown key", "a key of the configuration", where)
			return
		}
		field, ok := fieldOf(v, part)
		if !ok {
			l.problem(key, "unknown key", "one of "+strings.Join(keysOf(v.Type()), ", "), where)
			return
		}
		v = field
	}
	switch {
	case isScalar(v):
		l.scalar(key, v, text, where)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String:
		maps.DeleteFunc(l.where, func(k, _ string) bool { return strings.HasPrefix(k, key+"[") })
		l.where[key] = where
		v.Set(reflect.ValueOf(strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })))
	default:
		l.problem(key, strconv.Quote(text), "a key with a single value; use the file for this one", where)
	}
}

// environment applies every QUELL_… variable that names a key.
func (l *loader) environment(a *Agent, environ []string) {
	names := map[string]string{}
	walk("", reflect.TypeFor[Agent](), func(key string, f reflect.StructField) {
		names["QUELL_"+strings.ToUpper(strings.ReplaceAll(key, ".", "_"))] = key
	})
	for _, e := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(e, "=")
		if key, ok := names[name]; ok {
			l.assign(a, key, value, "$"+name)
		}
	}
}

func join(prefix, name string) string {
	if prefix == "" || strings.HasSuffix(prefix, ".") {
		return prefix + name
	}
	return prefix + "." + name
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "mapping"
	case yaml.SequenceNode:
		return "list"
	}
	return "value"
}

func fieldOf(v reflect.Value, name string) (reflect.Value, bool) {
	t := v.Type()
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("key") == name && name != "" {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		if k := t.Field(i).Tag.Get("key"); k != "" {
			keys = append(keys, k)
		}
	}
	return keys
}

func isScalar(v reflect.Value) bool {
	if _, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return true
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Slice:
		return false
	}
	return true
}

func parse(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch p := v.Addr().Interface().(type) {
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err == nil {
			*p = d
		}
		return err
	case *string:
		*p = text
		return nil
	case *bool:
		b, err := strconv.ParseBool(text)
		if err == nil {
			*p = b
		}
		return err
	case *int:
		n, err := strconv.Atoi(text)
		if err == nil {
			*p = n
		}
		return err
	case *float64:
		f, err := strconv.ParseFloat(text, 64)
		if err == nil {
			*p = f
		}
		return err
	}
	return fmt.Errorf("no parser for %s", v.Type())
}

func want(v reflect.Value) string {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := u.UnmarshalText([]byte("?")); err != nil {
			_, allowed, _ := strings.Cut(err.Error(), "want ")
			return allowed
		}
	}
	switch v.Interface().(type) {
	case time.Duration:
		return "a duration such as 10s or 5m"
	case bool:
		return "true or false"
	case int:
		return "a whole number"
	case float64:
		return "a number"
	}
	return "text"
}
