package keyed

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Walk calls fn for every leaf key of the struct that s points to, in order, with its
// field and its value.
func Walk(s any, fn func(key string, f reflect.StructField, v reflect.Value)) {
	walk("", reflect.ValueOf(s).Elem(), fn)
}

func walk(prefix string, s reflect.Value, fn func(key string, f reflect.StructField, v reflect.Value)) {
	for _, f := range reflect.VisibleFields(s.Type()) {
		name, v := f.Tag.Get("key"), s.FieldByIndex(f.Index)
		switch {
		case name == "" || name == "-":
		case f.Type.Kind() == reflect.Struct && !isScalar(v):
			walk(join(prefix, name)+".", v, fn)
		default:
			fn(join(prefix, name), f, v)
		}
	}
}

// Check checks the values of the struct that s points to against the ranges in its tags.
// prefix is put before the keys ("rules[0].").
func Check(prefix string, s any) []Problem {
	var ps []Problem
	walk(prefix, reflect.ValueOf(s).Elem(), func(key string, f reflect.StructField, v reflect.Value) {
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
	switch {
	case v.CanInt():
		return v.Int() >= lo.Int() && v.Int() <= hi.Int()
	case v.CanUint():
		return v.Uint() >= lo.Uint() && v.Uint() <= hi.Uint()
	case v.CanFloat():
		return v.Float() >= lo.Float() && v.Float() <= hi.Float()
	}
	return true
}

func join(prefix, name string) string {
	if prefix == "" || strings.HasSuffix(prefix, ".") {
		return prefix + name
	}
	return prefix + "." + name
}

func fieldOf(v reflect.Value, name string) (reflect.Value, bool) {
	for _, f := range reflect.VisibleFields(v.Type()) {
		if f.Tag.Get("key") == name && name != "" && name != "-" {
			return v.FieldByIndex(f.Index), true
		}
	}
	return reflect.Value{}, false
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for _, f := range reflect.VisibleFields(t) {
		if k := f.Tag.Get("key"); k != "" && k != "-" {
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
	case reflect.Struct, reflect.Slice, reflect.Map, reflect.Pointer:
		return false
	}
	return true
}

func parse(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	if v.Type() == reflect.TypeFor[time.Duration]() {
		d, err := sample.ParseDuration(text)
		if err == nil {
			v.SetInt(int64(d))
		}
		return err
	}
	switch {
	case v.Kind() == reflect.String:
		v.SetString(text)
		return nil
	case v.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err == nil {
			v.SetBool(b)
		}
		return err
	case v.CanInt():
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err == nil {
			v.SetInt(n)
		}
		return err
	case v.CanUint():
		n, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err == nil {
			v.SetUint(n)
		}
		return err
	case v.CanFloat():
		f, err := strconv.ParseFloat(text, 64)
		if err == nil {
			v.SetFloat(f)
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
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		return "a duration such as 10s or 5m"
	case v.Kind() == reflect.Bool:
		return "true or false"
	case v.CanInt(), v.CanUint():
		return "a whole number"
	case v.CanFloat():
		return "a number"
	case v.Kind() == reflect.Struct, v.Kind() == reflect.Map:
		return "keys and values"
	case v.Kind() == reflect.Slice:
		return "a list"
	}
	return "text"
}
