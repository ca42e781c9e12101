// Package depot keeps files in a folder of S3-compatible storage: the packs of studies'
// results that several controllers gather there.
//
// It implements the few requests of the protocol itself, with AWS's signer but without
// AWS's client: quell is the program that the lab's guests boot, and the client, which
// can find credentials in many ways, would make it a quarter larger.
package depot

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// Folder is a folder of a bucket.
type Folder struct {
	bucket, folder string
	root           string // URL of the bucket
	region         string
	credentials    aws.Credentials
}

// Open parses an address, s3://BUCKET/FOLDER. It sends no request. getenv returns
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, for a role, AWS_SESSION_TOKEN; AWS_REGION,
// us-east-1 if it is empty; and AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for storage that is
// not AWS's.
func Open(address string, getenv func(string) string) (*Folder, error) {
	rest, ok := strings.CutPrefix(address, "s3://")
	bucket, folder, _ := strings.Cut(rest, "/")
	folder = strings.Trim(folder, "/")
	if !ok || bucket == "" || folder == "" || path.Clean(folder) != folder || strings.HasPrefix(folder, "..") {
		return nil, fmt.Errorf("open %q: not the address of a folder in S3-compatible storage", address)
	}
	f := &Folder{bucket: bucket, folder: folder, region: cmp.Or(getenv("AWS_REGION"), "us-east-1"),
		credentials: aws.Credentials{AccessKeyID: getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: getenv("AWS_SECRET_ACCESS_KEY"), SessionToken: getenv("AWS_SESSION_TOKEN")}}
	if f.credentials.AccessKeyID == "" || f.credentials.SecretAccessKey == "" {
		return nil, fmt.Errorf("open %s: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not both set", address)
	}
	f.root = "https://" + bucket + ".s3." + f.region + ".amazonaws.com"
	if endpoint := cmp.Or(getenv("AWS_ENDPOINT_URL_S3"), getenv("AWS_ENDPOINT_URL")); endpoint != "" {
		f.root = strings.TrimSuffix(endpoint, "/") + "/" + bucket
	}
	return f, nil
}

// URL returns a file's address.
func (f *Folder) URL(name string) string { return "s3://" + f.bucket + "/" + f.folder + "/" + name }

// empty is the SHA-256 of empty content.
const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// do signs a request and sends it; an answer that is not 2xx is an error with the
// storage's message.
func (f *Folder) do(ctx context.Context, method, address string, body io.Reader, size int64, sum string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	r.ContentLength = size
	r.Header.Set("X-Amz-Content-Sha256", sum)
	// S3's paths are escaped once. Storage refuses a signature of another day.
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err := signer.SignHTTP(ctx, f.credentials, r, sum, "s3", f.region, time.Now()); err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode/100 != 2 {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 500)) // as far as it is readable
		answer.Body.Close()
		return nil, fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(said)))
	}
	return answer, nil
}

func (f *Folder) address(name string) string {
	return f.root + (&url.URL{Path: "/" + f.folder + "/" + name}).EscapedPath()
}

// Put stores a file whose SHA-256 is sum, whole or not at all; at most 5 GB, the limit
// of a single request.
func (f *Folder) Put(ctx context.Context, name, file, sum string) error {
	in, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("put %s: %w", f.URL(name), err)
	}
	defer in.Close() // read only
	info, err := in.Stat()
	if err != nil {
		return fmt.Errorf("put %s: %w", f.URL(name), err)
	}
	answer, err := f.do(ctx, http.MethodPut, f.address(name), in, info.Size(), sum)
	if err != nil {
		return fmt.Errorf("put %s: %w", f.URL(name), err)
	}
	answer.Body.Close()
	return nil
}

// Get writes a file, whole or not at all, and returns its SHA-256.
func (f *Folder) Get(ctx context.Context, name, file string) (sum string, err error) {
	answer, err := f.do(ctx, http.MethodGet, f.address(name), nil, 0, empty)
	if err != nil {
		return "", fmt.Errorf("get %s: %w", f.URL(name), err)
	}
	defer answer.Body.Close()
	part, err := os.CreateTemp(filepath.Dir(file), ".part-")
	if err != nil {
		return "", fmt.Errorf("get %s: %w", f.URL(name), err)
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(part, h), answer.Body)
	if err == nil && answer.ContentLength >= 0 && n != answer.ContentLength {
		err = io.ErrUnexpectedEOF
	}
	if err = errors.Join(err, part.Chmod(0o644), part.Close()); err == nil {
		err = os.Rename(part.Name(), file)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("get %s: %w", f.URL(name), err), os.Remove(part.Name()))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Entry is a file in a folder.
type Entry struct {
	Name  string
	Bytes int64
}

// List returns the files directly in the folder, by name.
func (f *Folder) List(ctx context.Context) ([]Entry, error) {
	var all []Entry
	for more := ""; ; {
		query := url.Values{"list-type": {"2"}, "prefix": {f.folder + "/"}}
		if more != "" {
			query.Set("continuation-token", more)
		}
		answer, err := f.do(ctx, http.MethodGet, f.root+"/?"+query.Encode(), nil, 0, empty)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", f.URL(""), err)
		}
		var page struct {
			Contents []struct {
				Key  string
				Size int64
			}
			IsTruncated           bool
			NextContinuationToken string
		}
		err = xml.NewDecoder(answer.Body).Decode(&page)
		answer.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", f.URL(""), err)
		}
		for _, c := range page.Contents {
			if name := strings.TrimPrefix(c.Key, f.folder+"/"); name != "" && !strings.Contains(name, "/") {
				all = append(all, Entry{name, c.Size})
			}
		}
		if !page.IsTruncated || page.NextContinuationToken == "" {
			return all, nil
		}
		more = page.NextContinuationToken
	}
}
