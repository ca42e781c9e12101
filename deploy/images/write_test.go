package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// tree is a root file system with a program of the given content, with times and modes that differ.
func tree(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"usr/bin/program": 0o711, "usr/share/doc/NOTICE": 0o600} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func written(t *testing.T, content string) (string, v1.Hash) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	m, err := parse([]string{"-out", out, "-name", "localhost/program:v1", "-title", "program", "-version", "v1", "-revision", "abc", "-user", "65532:65532",
		"-entrypoint", "/usr/bin/program", "-time", "1700000000", "amd64=" + tree(t, content), "arm64=" + tree(t, content+"arm")})
	if err != nil {
		t.Fatal(err)
	}
	digest, err := m.write()
	if err != nil {
		t.Fatal(err)
	}
	return out, digest
}

// unpacked is the layout in an archive, as a directory.
func unpacked(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			return dir
		} else if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(h.Name, "/") {
			err = os.MkdirAll(filepath.Join(dir, h.Name), 0o755)
		} else {
			text, readErr := io.ReadAll(r)
			if readErr != nil {
				t.Fatal(readErr)
			}
			err = os.WriteFile(filepath.Join(dir, h.Name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The same files give the same bytes, whatever their times and modes; another file another digest.
func TestReproducible(t *testing.T) {
	one, first := written(t, "x")
	two, second := written(t, "x")
	a, errA := os.ReadFile(one)
	b, errB := os.ReadFile(two)
	if errA != nil || errB != nil || first != second || !bytes.Equal(a, b) {
		t.Errorf("%s and %s, %v, %v", first, second, errA, errB)
	}
	if _, other := written(t, "y"); other == first {
		t.Errorf("another program has the same digest %s", other)
	}
}

// The archive is a valid layout: one index with an image for each architecture, its user, program
// and labels.
func TestLayout(t *testing.T) {
	file, digest := written(t, "x")
	dir := unpacked(t, file)
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	named, err := top.IndexManifest()
	if err != nil || len(named.Manifests) != 1 || named.Manifests[0].Digest != digest || named.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "localhost/program:v1" {
		t.Fatalf("%+v, %v", named, err)
	}
	index, err := top.ImageIndex(digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	all, err := index.IndexManifest()
	if err != nil || len(all.Manifests) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		if p := all.Manifests[i].Platform; p == nil || p.OS != "linux" || p.Architecture != arch {
			t.Errorf("platform %+v, want %s", p, arch)
		}
		image, err := index.Image(all.Manifests[i].Digest)
		if err != nil {
			t.Fatal(err)
		}
		c, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c.Architecture != arch || c.Config.User != "65532:65532" || c.Config.Entrypoint[0] != "/usr/bin/program" ||
			c.Config.Labels["org.opencontainers.image.version"] != "v1" || !c.Created.Equal(time.Unix(1_700_000_000, 0)) {
			text, _ := json.Marshal(c)
			t.Errorf("%s", text)
		}
		layers, err := image.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%d layers, %v", len(layers), err)
		}
		r, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for files := tar.NewReader(r); ; {
			h, err := files.Next()
			if err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			got = append(got, h.FileInfo().Mode().String()+" "+h.Name)
			if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 1_700_000_000 {
				t.Errorf("%+v", h)
			}
		}
		want := "drwxr-xr-x usr/ drwxr-xr-x usr/bin/ -rwxr-xr-x usr/bin/program drwxr-xr-x usr/share/ drwxr-xr-x usr/share/doc/ -rw-r--r-- usr/share/doc/NOTICE"
		if strings.Join(got, " ") != want {
			t.Errorf("files %q", got)
		}
	}
}

// What is missing in a command line is said.
func TestParse(t *testing.T) {
	for want, args := range map[string][]string{
		"-out is required":        {},
		"-entrypoint is required": {"-out", "a", "-name", "b", "-user", "0:0"},
		"at least one":            {"-out", "a", "-name", "b", "-user", "0:0", "-entrypoint", "/p"},
		"want ARCH=DIRECTORY":     {"-out", "a", "-name", "b", "-user", "0:0", "-entrypoint", "/p", "amd64"},
	} {
		if _, err := parse(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
