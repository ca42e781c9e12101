// Package wire is what agents and servers say to each other: messages
// (wire.proto, docs/wire.md) and the subjects they travel on.
//
// A batch is laid out by column, with a dictionary of its strings, so that it
// is small and cheap to take apart: decoding costs a handful of allocations
// whatever the number of samples. Everything else is rare and plain.
//
// Old and new agents and servers meet all the time. A message with fields that
// this side does not know is understood without them; one of a newer version is
// refused with a *VersionError. An extra column or a signal that this side does
// not know is not lost in a store that keeps names, only skipped here.
package wire

//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative wire.proto"
