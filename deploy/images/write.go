package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const source = "https://github.com/quell-dev/quell"

// write writes the archive and returns the digest by which the image is pulled: that of the index
// of all architectures.
func (m *image) write() (v1.Hash, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range m.platforms {
		one, err := m.build(p)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("make image of %s: %w", p.dir, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: p.arch},
		}})
	}
	index = mutate.Annotations(index, m.labels()).(v1.ImageIndex)
	digest, err := index.Digest()
	if err != nil {
		return v1.Hash{}, err
	}
	dir, err := os.MkdirTemp("", "images-")
	if err != nil {
		return v1.Hash{}, err
	}
	defer os.RemoveAll(dir)
	l, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return v1.Hash{}, fmt.Errorf("write layout: %w", err)
	}
	// Both names are read: containerd's, and that of the specification.
	name := map[string]string{"io.containerd.image.name": m.name, "org.opencontainers.image.ref.name": m.name}
	if err := l.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return v1.Hash{}, fmt.Errorf("write layout: %w", err)
	}
	text, err := archive(dir, m.created)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("archive layout: %w", err)
	}
	return digest, os.WriteFile(m.out, text, 0o644)
}

// labels say what the image is, by the keys of the OCI image specification.
func (m *image) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":         m.title,
		"org.opencontainers.image.description":   m.description,
		"org.opencontainers.image.version":       m.version,
		"org.opencontainers.image.revision":      m.revision,
		"org.opencontainers.image.created":       m.created.Format(time.RFC3339),
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.source":        source,
		"org.opencontainers.image.url":           source,
		"org.opencontainers.image.documentation": source + "/blob/main/docs/kubernetes.md",
	}
}

// build is the image of one architecture: one layer, with the files of its directory.
func (m *image) build(p platform) (v1.Image, error) {
	files, err := archive(p.dir, m.created)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	made := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	made, err = mutate.Append(made, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{
		Created: v1.Time{Time: m.created}, CreatedBy: "make images", Comment: m.title + " " + m.version,
	}})
	if err != nil {
		return nil, err
	}
	file, err := made.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", p.arch, v1.Time{Time: m.created}
	file.Config = v1.Config{User: m.user, Entrypoint: []string{m.entrypoint}, Env: []string{"PATH=/usr/bin"}, Labels: m.labels(), StopSignal: "SIGTERM"}
	made, err = mutate.ConfigFile(made, file)
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(made, m.labels()).(v1.Image), nil
}

// archive is a tar archive of a directory: sorted, of user 0, of one time, and with no modes but those
// of a program, a file and a directory.
func archive(dir string, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error { // in the order of names
		if err != nil || name == dir {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: filepath.ToSlash(rel), ModTime: at, Mode: 0o644, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		switch info, err := d.Info(); {
		case err != nil:
			return err
		case d.IsDir():
			h.Name, h.Mode, h.Typeflag = path.Clean(h.Name)+"/", 0o755, tar.TypeDir
			return w.WriteHeader(h)
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is no regular file", name)
		case info.Mode()&0o111 != 0:
			h.Mode = 0o755
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		h.Size = int64(len(content))
		return errors.Join(w.WriteHeader(h), second(w.Write(content)))
	})
	err = errors.Join(err, w.Close())
	return b.Bytes(), err
}

func second(_ int, err error) error { return err }
