package labcmd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/lab/depot"
	"github.com/quell-dev/quell/internal/lab/render"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// packs is the results of studies in a folder of S3-compatible storage: one pack each,
// STUDY-HASH.tar.gz, with the hash of its content. Writing a pack therefore writes either
// the same content or a new name.
type packs struct{ *depot.Folder }

// hashDigits is how many digits of a pack's hash are in its name.
const hashDigits = 16

var packName = regexp.MustCompile(`-([0-9a-f]{16})\.tar\.gz$`)

const storageHelp = "s3://BUCKET/FOLDER, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL for storage other than AWS; see quell lab push --help"

// openPacks does not connect yet.
func (a *commands) openPacks(address string) (*packs, error) {
	f, err := depot.Open(address, a.Getenv)
	if err != nil {
		return nil, app.Usage(err, storageHelp)
	}
	return &packs{f}, nil
}

// pushed is the JSON form of a pack in storage.
type pushed struct {
	URL    string `json:"url"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

// push packs a study's folder and stores the pack.
func (p *packs) push(ctx context.Context, f *result.Folder, study string) (*pushed, error) {
	dir, err := workload.Scratch(packDir)
	if err != nil {
		return nil, fmt.Errorf("push %s: %w", f.Dir(), err)
	}
	defer os.RemoveAll(dir)
	tmp, err := os.Create(filepath.Join(dir, "pack"))
	if err != nil {
		return nil, fmt.Errorf("push %s: %w", f.Dir(), err)
	}
	h := sha256.New()
	err = render.Pack(io.MultiWriter(tmp, h), f)
	size, err2 := tmp.Seek(0, io.SeekCurrent)
	if err = errors.Join(err, err2, tmp.Close()); err != nil {
		return nil, fmt.Errorf("push %s: %w", f.Dir(), err)
	}
	sum := hex.EncodeToString(h.Sum(nil))
	name := fmt.Sprintf("%s-%s.tar.gz", study, sum[:hashDigits])
	if err := p.Put(ctx, name, tmp.Name(), sum); err != nil {
		return nil, fmt.Errorf("push %s: %w", f.Dir(), err)
	}
	return &pushed{p.URL(name), sum, size}, nil
}

// pulled is the JSON form of a pack that pull has processed.
type pulled struct {
	File  string `json:"file"`
	There bool   `json:"there"` // it was already there
}

// pull downloads the packs that a folder does not have yet.
func (p *packs) pull(ctx context.Context, dir string) ([]pulled, error) {
	entries, err := p.List(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	var all []pulled
	for _, e := range entries {
		if !strings.HasSuffix(e.Name, ".tar.gz") || !filepath.IsLocal(e.Name) {
			continue
		}
		one := pulled{File: filepath.Join(dir, e.Name)}
		if st, err := os.Stat(one.File); err == nil && st.Size() == e.Bytes {
			one.There = true
		} else if err := p.get(ctx, e.Name, one.File); err != nil {
			return all, err
		}
		all = append(all, one)
	}
	return all, nil
}

// get downloads a pack and checks the hash in its name, if there is one.
func (p *packs) get(ctx context.Context, name, file string) error {
	sum, err := p.Get(ctx, name, file)
	if err != nil {
		return err
	}
	if m := packName.FindStringSubmatch(name); m != nil && m[1] != sum[:hashDigits] {
		return errors.Join(fmt.Errorf("pull %s: it is damaged: its hash begins with %s", p.URL(name), sum[:hashDigits]), os.Remove(file))
	}
	return nil
}

func (a *commands) labPush() *cobra.Command {
	return a.WithJSON(&cobra.Command{
		Use: "push FOLDER|PACK s3://BUCKET/FOLDER", Short: "copy a study's records to S3-compatible storage", Args: cobra.ExactArgs(2),
		ValidArgsFunction: folders,
		RunE: func(cmd *cobra.Command, args []string) error {
			to, err := a.openPacks(args[1])
			if err != nil {
				return err
			}
			f, s, done, err := openResults(args[0], a.Err)
			if err != nil {
				return err
			}
			defer done()
			p, err := to.push(cmd.Context(), f, s.Name)
			if err != nil {
				return app.Negative(err, storageHelp)
			}
			if a.JSON {
				return a.WriteJSON(p)
			}
			fmt.Fprintln(a.Out, p.URL)
			return nil
		},
	})
}

func (a *commands) labPull() *cobra.Command {
	return a.WithJSON(&cobra.Command{
		Use: "pull s3://BUCKET/FOLDER [FOLDER]", Short: "copy packs of studies from S3-compatible storage", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := a.openPacks(args[0])
			if err != nil {
				return err
			}
			dir := "."
			if len(args) > 1 {
				dir = args[1]
			}
			all, err := from.pull(cmd.Context(), dir)
			if err != nil {
				return app.Negative(err, storageHelp)
			}
			if a.JSON {
				return a.WriteJSON(app.List(all))
			}
			got := slices.DeleteFunc(slices.Clone(all), func(p pulled) bool { return p.There })
			for _, p := range got {
				fmt.Fprintln(a.Out, p.File)
			}
			if len(got) == 0 {
				fmt.Fprintf(a.Out, "nothing new: all of %d packs exist here\n", len(all))
			}
			return nil
		},
	})
}
