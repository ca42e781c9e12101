package store

import (
	"context"
	"time"
)

// Bucket is where a store's files are if not in its folder alone: S3-compatible
// storage (store/s3), or anything else that several servers reach. The folder
// then holds copies. Names are relative, with slashes; a name that was given
// never means other content later. Every method may be called at any time by
// several servers.
type Bucket interface {
	// Put takes in the file at path, whole or not at all.
	Put(ctx context.Context, name, path string) error
	// Create makes a small file. Of all that ever try to make one of a name exactly
	// one succeeds, the others get fs.ErrExist: this is the moment of a commit. An
	// error that is not fs.ErrExist says nothing: Read tells whose file is there.
	Create(ctx context.Context, name string, data []byte) error
	// Read returns a small file; fs.ErrNotExist if there is none.
	Read(ctx context.Context, name string) ([]byte, error)
	// Get writes a file to path, whole or not at all; fs.ErrNotExist if there is none.
	Get(ctx context.Context, name, path string) error
	// List returns what is below a folder, in the order of names: all that was there
	// when it was called.
	List(ctx context.Context, folder string) ([]Entry, error)
	// Remove removes a file; that there is none is no error.
	Remove(ctx context.Context, name string) error
	// URL is how other tools reach a file, "s3://bucket/prefix/name" say.
	URL(name string) string
}

// Entry is a file in a Bucket.
type Entry struct {
	Name  string
	Bytes int64
	At    time.Time // when it was made, by the bucket's clock
}
