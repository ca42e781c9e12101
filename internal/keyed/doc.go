// Package keyed reads YAML into structs strictly: every unknown key, key given
// twice, value that does not parse or is out of its range becomes a Problem
// with its key, its value, what is allowed and the line, and all of them are
// found at once. The structs' tags are key (the name in the file; none: not
// there), help, oneof (words) and min with max.
package keyed
