// Package s3 keeps a store's files in S3-compatible storage (store.Bucket).
//
// It needs conditional writes (PutObject with If-None-Match), on which a commit is based.
// AWS has them since August 2024, and so have the servers listed in docs/store.md. With
// other storage two servers could overwrite each other's commits; Open detects and
// refuses it.
package s3
