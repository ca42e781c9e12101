package render

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/lab/result"
)

// packed are the parts of a study's folder that are in a pack: the measurements and the
// expectations. Renderings are not packed.
var packed = [...]string{"study.lock.json", "env", "runs", "results", "missed.json", "expect.yaml", "cost.json"}

// manifest is a pack's first file: one line per other file, in the format of sha256sum.
const manifest = "MANIFEST.sha256"

// largest bounds the size of all of a pack's files together, so that a small pack cannot fill a disk.
const largest = 16 << 30

// Pack writes a study's folder as one tar.gz. The same records give the same bytes: it
// contains no times, owners or order of the file system. A link that leads out of the folder is an
// error: the user that made it may get the pack, and not be allowed to read what it leads to.
func Pack(w io.Writer, f *result.Folder) error {
	root, err := os.OpenRoot(f.Dir())
	if err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	defer root.Close()
	names, sums, err := contents(root)
	if err != nil {
		return fmt.Errorf("pack %s: %w", f.Dir(), err)
	}
	b := bufio.NewWriter(w)
	z := gzip.NewWriter(b)
	t := tar.NewWriter(z)
	var list strings.Builder
	for i, name := range names {
		fmt.Fprintf(&list, "%s  %s\n", sums[i], name)
	}
	err = t.WriteHeader(&tar.Header{Name: manifest, Mode: 0o644, Size: int64(list.Len())})
	if err == nil {
		_, err = io.WriteString(t, list.String())
	}
	for i := 0; err == nil && i < len(names); i++ {
		err = put(t, root, names[i])
	}
	if err = errors.Join(err, t.Close(), z.Close(), b.Flush()); err != nil {
		return fmt.Errorf("pack %s: %w", f.Dir(), err)
	}
	return nil
}

// contents are the sorted names of the files to pack, and their hashes.
func contents(root *os.Root) (names, sums []string, err error) {
	for _, part := range packed {
		err := fs.WalkDir(root.FS(), part, func(name string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) && name == part {
				return nil
			}
			if err == nil && d.Type().IsRegular() {
				names = append(names, name)
			}
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	slices.Sort(names)
	for _, name := range names {
		file, err := root.Open(name)
		if err != nil {
			return nil, nil, err
		}
		h := sha256.New()
		_, err = io.Copy(h, file)
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, nil, err
		}
		sums = append(sums, hex.EncodeToString(h.Sum(nil)))
	}
	return names, sums, nil
}

func put(t *tar.Writer, root *os.Root, name string) error {
	file, err := root.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(t, file)
	return err
}

// Unpack creates a study's folder from a pack. The folder must not exist. Every file is
// checked against the pack's manifest; on an error nothing is left.
func Unpack(r io.Reader, dir string) (f *result.Folder, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("unpack: %w", err), os.RemoveAll(dir))
		}
	}()
	z, err := gzip.NewReader(bufio.NewReader(r))
	if err != nil {
		return nil, err
	}
	t := tar.NewReader(z)
	want, err := readManifest(t)
	if err != nil {
		return nil, err
	}
	for room := int64(largest); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		sum, named := want[h.Name]
		if !named || h.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("%q is not in the pack's manifest, or is not a regular file", h.Name)
		}
		delete(want, h.Name)
		got, n, err := extract(t, filepath.Join(dir, filepath.FromSlash(h.Name)), room)
		if err != nil {
			return nil, err
		}
		room -= n
		if got != sum {
			return nil, fmt.Errorf("%s has changed since it was packed: its hash differs", h.Name)
		}
	}
	for name := range want {
		return nil, fmt.Errorf("%s is in the pack's manifest, but not in the pack", name)
	}
	return result.Open(dir)
}

// readManifest reads the first file. It rejects names outside of the folder and names
// that a pack cannot contain.
func readManifest(t *tar.Reader) (map[string]string, error) {
	h, err := t.Next()
	if err != nil {
		return nil, err
	}
	if h.Name != manifest {
		return nil, fmt.Errorf("not a pack of a study: it begins with %q, not %s", h.Name, manifest)
	}
	text, err := io.ReadAll(io.LimitReader(t, 1<<26))
	if err != nil {
		return nil, err
	}
	want := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		first, _, _ := strings.Cut(name, "/")
		if !ok || !filepath.IsLocal(name) || path.Clean(name) != name || !slices.Contains(packed[:], first) {
			return nil, fmt.Errorf("%s: invalid line: %.100q", manifest, line)
		}
		want[name] = sum
	}
	return want, nil
}

// extract writes a file of a pack, smaller than room, and returns its hash and size.
func extract(t io.Reader, name string, room int64) (sum string, n int64, err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return "", 0, err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", 0, err
	}
	h := sha256.New()
	n, err = io.Copy(io.MultiWriter(file, h), io.LimitReader(t, room))
	if n == room {
		err = fmt.Errorf("%s is too large: a pack's files have %d GiB together", name, largest>>30)
	}
	return hex.EncodeToString(h.Sum(nil)), n, errors.Join(err, file.Close())
}
