package store

import (
	"context"
	"time"
)

// Bucket is the storage of a store's files if not its folder alone: S3-compatible storage
// (store/s3), or other storage that several servers reach. The folder then holds copies.
// Names are relative, with slashes. A name never refers to different content later, but for
// the schemas, which each server stores when it starts. All methods may be called concurrently by several servers.
type Bucket interface {
	// Put stores the file at path, completely or not at all.
	Put(ctx context.Context, name, path string) error
	// Create makes a small file. Of all attempts to create a name exactly one succeeds; the others get fs.ErrExist.
	// This is the moment of a commit. After any other error the result is unknown: Read tells whose file is there.
	Create(ctx context.Context, name string, data []byte) error
	// Read returns a small file; fs.ErrNotExist if there is none.
	Read(ctx context.Context, name string) ([]byte, error)
	// Get writes a file to path, whole or not at all; fs.ErrNotExist if there is none.
	Get(ctx context.Context, name, path string) error
	// List returns the files below a folder in the order of names: all that existed when it was called.
	List(ctx context.Context, folder string) ([]Entry, error)
	// Remove removes a file. A missing file is no error.
	Remove(ctx context.Context, name string) error
	// URL is a file's address for other tools, e.g. "s3://bucket/prefix/name".
	URL(name string) string
}

// Entry is a file in a Bucket.
type Entry struct {
	Name  string
	Bytes int64
	At    time.Time // creation time by the bucket's clock
}
