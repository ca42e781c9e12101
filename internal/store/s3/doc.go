// Package s3 keeps a store's files in S3-compatible storage (store.Bucket).
//
// It needs conditional writes, PutObject with If-None-Match, which is what makes
// a commit: AWS has them since August 2024, and so have the servers that
// docs/store.md names. Storage without them would let two servers commit over
// each other; Open finds out and refuses it.
package s3
