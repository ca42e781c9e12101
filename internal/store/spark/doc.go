// Package spark asks a store on Apache Spark, by Spark Connect: the same SQL
// over the same Parquet where one machine is not enough. It speaks the protocol
// itself (connect.proto is the part of it that is needed), so neither Java nor
// Python is on this side. Spark's executors read the store's files under the
// same paths: from a shared file system, or from this machine where they run on
// it.
//
// Whoever can reach a Spark Connect server may do with it what Spark may do.
// quell-server asks it for specs only, by statements of its own; people's queries
// go to it from their own machine, with their own rights (quell query --engine).
package spark

//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative connect.proto"
