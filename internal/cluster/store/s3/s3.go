package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/quell-dev/quell/internal/cluster/store"
)

// Options locate the storage. Credentials come from the same places as for the AWS tools:
// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, their files, or the machine's role.
type Options struct {
	Bucket string
	Prefix string // prefix of all names; empty: none
	// Endpoint is a server's URL, e.g. http://127.0.0.1:9000; empty: AWS.
	Endpoint string
	Region   string // empty: from the environment, else us-east-1
}

// Bucket implements store.Bucket.
type Bucket struct {
	client *s3.Client
	bucket string
	prefix string // "" or ends with a slash
}

// ErrUnconditional means that the storage lacks conditional writes, which a commit needs.
var ErrUnconditional = errors.New("the storage ignores If-None-Match: it lets one server's commit overwrite another's")

// probe is the file with which Open tests conditional writes.
const probe = "schema/conditional-writes"

// Open checks that the bucket exists and supports conditional writes.
func Open(ctx context.Context, o Options) (*Bucket, error) {
	var from []func(*config.LoadOptions) error
	if o.Region != "" {
		from = append(from, config.WithRegion(o.Region))
	} else {
		from = append(from, config.WithDefaultRegion("us-east-1"))
	}
	c, err := config.LoadDefaultConfig(ctx, from...)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", o.Bucket, err)
	}
	b := &Bucket{bucket: o.Bucket, prefix: strings.Trim(o.Prefix, "/")}
	if b.prefix != "" {
		b.prefix += "/"
	}
	b.client = s3.NewFromConfig(c, func(s *s3.Options) {
		s.RetryMaxAttempts = 5
		s.Retryer = retry.AddWithErrorCodes(s.Retryer, "ConditionalRequestConflict")
		// Not all servers support the newer checksums. TLS and the Parquet readers detect
		// the same errors.
		s.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		s.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		if o.Endpoint != "" {
			s.BaseEndpoint, s.UsePathStyle = aws.String(o.Endpoint), true
		}
	})
	return b, b.check(ctx)
}

// check writes the probe twice: the second must be refused.
func (b *Bucket) check(ctx context.Context) error {
	if err := b.Create(ctx, probe, nil); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("open %s: %w", b.URL(""), err)
	}
	switch err := b.Create(ctx, probe, nil); {
	case err == nil:
		return fmt.Errorf("open %s: %w", b.URL(""), ErrUnconditional)
	case !errors.Is(err, fs.ErrExist):
		return fmt.Errorf("open %s: %w", b.URL(""), err)
	}
	return nil
}

func (b *Bucket) key(name string) *string { return aws.String(b.prefix + name) }

// URL implements store.Bucket.
func (b *Bucket) URL(name string) string { return "s3://" + b.bucket + "/" + b.prefix + name }

// explain adds the operation and name to an error. An HTTP status with an equivalent in
// package fs becomes that error.
func (b *Bucket) explain(do, name string, err error) error {
	if answer, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		switch answer.HTTPStatusCode() {
		case http.StatusNotFound:
			return fmt.Errorf("%s %s: %w: %w", do, b.URL(name), fs.ErrNotExist, err)
		case http.StatusPreconditionFailed:
			return fmt.Errorf("%s %s: %w: %w", do, b.URL(name), fs.ErrExist, err)
		}
	}
	return fmt.Errorf("%s %s: %w", do, b.URL(name), err)
}

// Put implements store.Bucket.
func (b *Bucket) Put(ctx context.Context, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("put %s: %w", b.URL(name), err)
	}
	defer f.Close() // it was only read
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("put %s: %w", b.URL(name), err)
	}
	if _, err := b.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.bucket, Key: b.key(name), Body: f, ContentLength: aws.Int64(info.Size())}); err != nil {
		return b.explain("put", name, err)
	}
	return nil
}

// Create implements store.Bucket. The client itself retries after a conflict with a
// concurrent writer (409).
func (b *Bucket) Create(ctx context.Context, name string, data []byte) error {
	_, err := b.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.bucket, Key: b.key(name), Body: bytes.NewReader(data),
		ContentLength: aws.Int64(int64(len(data))), IfNoneMatch: aws.String("*")})
	if err != nil {
		return b.explain("create", name, err)
	}
	return nil
}

// Read implements store.Bucket.
func (b *Bucket) Read(ctx context.Context, name string) ([]byte, error) {
	var all bytes.Buffer
	if err := b.copy(ctx, name, &all); err != nil {
		return nil, err
	}
	return all.Bytes(), nil
}

func (b *Bucket) copy(ctx context.Context, name string, to io.Writer) error {
	got, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.bucket, Key: b.key(name)})
	if err != nil {
		return b.explain("read", name, err)
	}
	defer got.Body.Close() // it was only read
	n, err := io.Copy(to, got.Body)
	if err == nil && got.ContentLength != nil && n != *got.ContentLength {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return b.explain("read", name, err)
	}
	return nil
}

// Get implements store.Bucket.
func (b *Bucket) Get(ctx context.Context, name, path string) error {
	part := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("read %s: %w", b.URL(name), err)
	}
	err = errors.Join(b.copy(ctx, name, f), f.Close())
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return nil
}

// List implements store.Bucket.
func (b *Bucket) List(ctx context.Context, folder string) ([]store.Entry, error) {
	var all []store.Entry
	pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{Bucket: &b.bucket, Prefix: b.key(folder + "/")})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, b.explain("list", folder, err)
		}
		for _, o := range page.Contents {
			all = append(all, store.Entry{Name: strings.TrimPrefix(aws.ToString(o.Key), b.prefix), Bytes: aws.ToInt64(o.Size), At: aws.ToTime(o.LastModified)})
		}
	}
	return all, nil
}

// Remove implements store.Bucket.
func (b *Bucket) Remove(ctx context.Context, name string) error {
	if _, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.bucket, Key: b.key(name)}); err != nil {
		if err = b.explain("remove", name, err); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
