// Package keyed reads YAML into structs strictly. Every unknown key, every key given
// twice and every value that does not parse or is out of its range becomes a Problem with
// its key, its value, what is allowed and the line. All problems are reported at once.
// The structs' tags are key (the name in the file; without it the field is not in the
// file), help, oneof (words) and min with max. The keys of an embedded struct are those of
// the struct that embeds it.
package keyed
