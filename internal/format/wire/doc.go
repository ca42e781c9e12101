// Package wire defines the messages between agents and servers (wire.proto, docs/wire.md)
// and their subjects.
//
// A batch is encoded by column, with a dictionary of its strings, so that it is small and
// cheap to decode: decoding makes only a few allocations, whatever the number of samples.
// All other messages are rare and simple.
//
// Agents and servers of different versions communicate all the time. Unknown fields of a
// message are ignored. A message of a newer version is refused with a *VersionError. An
// unknown extra column or signal is not lost in a store that keeps names, only skipped
// here.
package wire

//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative wire.proto"
