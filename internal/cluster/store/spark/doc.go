// Package spark queries a store on Apache Spark, by Spark Connect: the same SQL over the
// same Parquet files, for stores too large for one machine. It implements the protocol
// itself (connect.proto has the required part), so that this side needs neither Java nor
// Python. Spark's executors read the store's files under the same paths: from a shared
// file system, or from this machine if they run on it.
//
// A client of a Spark Connect server has all of Spark's rights. quell-server therefore
// sends only its own statements for specs. Users send their queries to Spark from their
// own machine, with their own rights (quell query --engine).
package spark

//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative connect.proto"
