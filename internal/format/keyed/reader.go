package keyed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Reader fills one struct from several sources and remembers where each key's value came
// from. A later source overrides an earlier one. The zero value is ready.
type Reader struct {
	File     string // named in problems
	Problems []Problem
	where    map[string]string // key → where its value came from
}

// Filler is implemented by types that have their own format in the file. Fill reports
// problems to the reader.
type Filler interface {
	Fill(r *Reader, key string, n *yaml.Node)
}

// Named is implemented by the elements of a list, or the values of a map, that
// the file writes as a mapping from their names.
type Named interface{ SetName(string) }

// Needing is implemented by structs with required keys: Missing returns those that are
// not in seen. It is needed because a zero value can be a valid value.
type Needing interface {
	Missing(seen map[string]bool) []string
}

// Add records a problem.
func (r *Reader) Add(key, value, want, where string) {
	r.Problems = append(r.Problems, Problem{key, value, want, where})
}

// At returns the file and line of a node.
func (r *Reader) At(n *yaml.Node) string { return fmt.Sprintf("%s:%d", r.File, n.Line) }

// Where returns where a key's value came from. For a list element, or for a key that is
// missing in one, it falls back to the element and then to the list. For a default it
// returns "".
func (r *Reader) Where(key string) string {
	if where := r.where[key]; where != "" {
		return where
	}
	if i := strings.LastIndexByte(key, ']'); i >= 0 {
		if i+1 < len(key) {
			return r.Where(key[:i+1])
		}
		return r.Where(key[:strings.LastIndexByte(key, '[')])
	}
	return ""
}

// Near returns where a key is, or else where the nearest key that encloses it is.
func (r *Reader) Near(key string) string {
	for {
		if where := r.Where(key); where != "" {
			return where
		}
		dot := strings.LastIndexByte(key, '.')
		if dot < 0 {
			return ""
		}
		key = key[:dot]
	}
}

func (r *Reader) set(key, where string) {
	if r.where == nil {
		r.where = map[string]string{}
	}
	r.where[key] = where
}

// Document fills the struct that v points to from the single YAML document of the file.
// It returns an error for text that is not YAML. A file with only white space and
// comments is an empty document.
func (r *Reader) Document(v any, text []byte) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	r.Fill("", v, doc.Content[0])
	err = d.Decode(&more)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		r.Add("---", "a second document", "one document in the file", r.At(&more))
	}
	return err
}

// Fill sets the value that v points to from a YAML node. key is the value's key.
func (r *Reader) Fill(key string, v any, n *yaml.Node) { r.fill(key, reflect.ValueOf(v).Elem(), n) }

func (r *Reader) fill(key string, v reflect.Value, n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if key != "" {
		r.set(key, r.At(n))
	}
	if f, ok := v.Addr().Interface().(Filler); ok {
		f.Fill(r, key, n)
		return
	}
	switch {
	case isScalar(v):
		if n.Kind != yaml.ScalarNode {
			r.Add(key, "a "+kindName(n), want(v), r.At(n))
			return
		}
		text := n.Value
		if n.Tag == "!!null" { // also "~" and "null", which are not names
			text = ""
		}
		r.scalar(key, v, text, r.At(n))
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		r.fill(key, v.Elem(), n)
	case v.Kind() == reflect.Struct:
		r.mapping(key, v, n)
	case v.Kind() == reflect.Map:
		r.named(key, v, n)
	case v.Kind() == reflect.Slice:
		r.list(key, v, n)
	}
}

// named fills a map from a YAML mapping.
func (r *Reader) named(key string, v reflect.Value, n *yaml.Node) {
	v.Set(reflect.MakeMap(v.Type()))
	r.pairs(key, n, func(k, item *yaml.Node) {
		name, e := k.Value, reflect.New(v.Type().Elem()).Elem()
		setName(e, name)
		r.fill(join(key, name), e, item)
		v.SetMapIndex(reflect.ValueOf(name), e)
	})
}

func setName(v reflect.Value, name string) {
	if m, ok := v.Addr().Interface().(Named); ok {
		m.SetName(name)
	}
}

func (r *Reader) list(key string, v reflect.Value, n *yaml.Node) {
	if _, ok := reflect.New(v.Type().Elem()).Interface().(Named); ok && n.Kind == yaml.MappingNode {
		r.pairs(key, n, func(k, item *yaml.Node) {
			e := reflect.New(v.Type().Elem()).Elem()
			setName(e, k.Value)
			r.fill(join(key, k.Value), e, item)
			v.Set(reflect.Append(v, e))
		})
		return
	}
	if n.Kind != yaml.SequenceNode {
		r.Add(key, "a "+kindName(n), "a list", r.At(n))
		return
	}
	list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		r.fill(fmt.Sprintf("%s[%d]", key, i), list.Index(i), item)
	}
	v.Set(list)
}

// pairs calls fn once for each key of a mapping.
func (r *Reader) pairs(key string, n *yaml.Node, fn func(k, item *yaml.Node)) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		if key == "" {
			key = "the whole file"
		}
		r.Add(key, "a "+kindName(n), "keys and values", r.At(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		if seen[name] {
			r.Add(join(key, name), "given twice", "once", r.At(n.Content[i]))
		} else {
			fn(n.Content[i], n.Content[i+1])
		}
		seen[name] = true
	}
}

func (r *Reader) mapping(key string, v reflect.Value, n *yaml.Node) {
	seen := map[string]bool{}
	r.pairs(key, n, func(k, item *yaml.Node) {
		name := k.Value
		full := join(key, name)
		if field, ok := fieldOf(v, name); ok {
			r.fill(full, field, item)
		} else {
			r.Add(full, "unknown key", "one of "+strings.Join(keysOf(v.Type()), ", "), r.At(k))
		}
		seen[name] = true
	})
	if m, ok := v.Addr().Interface().(Needing); ok && n.Kind == yaml.MappingNode {
		for _, name := range m.Missing(seen) {
			field, _ := fieldOf(v, name)
			r.Add(join(key, name), "not given", want(reflect.New(field.Type()).Elem()), r.At(n))
		}
	}
}

func (r *Reader) scalar(key string, v reflect.Value, text, where string) {
	r.set(key, where)
	if err := parse(v, text); err != nil {
		r.Add(key, strconv.Quote(text), want(v), where)
	}
}

// Set sets one dotted key of the struct that dst points to; lists of words are
// comma-separated.
func (r *Reader) Set(dst any, key, text, where string) {
	v := reflect.ValueOf(dst).Elem()
	for part := range strings.SplitSeq(key, ".") {
		if isScalar(v) || v.Kind() != reflect.Struct {
			r.Add(key, "unknown key", "a key of the configuration", where)
			return
		}
		field, ok := fieldOf(v, part)
		if !ok {
			r.Add(key, "unknown key", "one of "+strings.Join(keysOf(v.Type()), ", "), where)
			return
		}
		v = field
	}
	switch {
	case isScalar(v):
		r.scalar(key, v, text, where)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String:
		maps.DeleteFunc(r.where, func(k, _ string) bool { return strings.HasPrefix(k, key+"[") })
		r.set(key, where)
		v.Set(reflect.ValueOf(strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })))
	default:
		r.Add(key, strconv.Quote(text), "a key with a single value; use the file for this one", where)
	}
}

// Environment applies every variable that names a key: with the prefix QUELL_,
// QUELL_SAMPLING_PERIOD=30s sets sampling.period.
func (r *Reader) Environment(dst any, prefix string, environ []string) {
	names := map[string]string{}
	Walk(dst, func(key string, _ reflect.StructField, _ reflect.Value) {
		names[prefix+strings.ToUpper(strings.ReplaceAll(key, ".", "_"))] = key
	})
	for _, e := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(e, "=")
		if key, ok := names[name]; ok {
			r.Set(dst, key, value, "$"+name)
		}
	}
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
