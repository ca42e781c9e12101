package render

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/result"
)

// folderOf writes a report's runs to a folder.
func folderOf(t testing.TB, r *Report) *result.Folder {
	t.Helper()
	f, err := result.Create(filepath.Join(t.TempDir(), "study"), result.Lock{Study: r.Study.Name, Hash: "h"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		a, err := f.Begin(run.CellKey, run.N, run.Try)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.Sample(result.Sample{At: 1, Values: map[string]float64{"x": 0.1}}), a.Finish(run)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func pack(t testing.TB, f *result.Folder) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Pack(&b, f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// An unpacked folder gives the same numbers, to the last bit, and the same pack.
func TestPackGivesTheSameNumbers(t *testing.T) {
	r := simulate(t, pairs)
	f := folderOf(t, r)
	for _, name := range []string{"report.html", "journal/entry"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(f.Path(name)), 0o755), os.WriteFile(f.Path(name), []byte("not packed"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	first := pack(t, f)
	g, err := Unpack(bytes.NewReader(first), filepath.Join(t.TempDir(), "copy"))
	if err != nil {
		t.Fatal(err)
	}
	before, err := f.Runs()
	if err != nil {
		t.Fatal(err)
	}
	after, err := g.Runs()
	if d := cmp.Diff(before, after); d != "" || err != nil || len(after) != len(r.Runs) {
		t.Errorf("%v %s", err, d)
	}
	var a, b bytes.Buffer
	here, there := *r, *r
	here.Results, there.Results = analyse.Compute(r.Study, before), analyse.Compute(r.Study, after)
	if err := errors.Join(CSV(&a, &here), CSV(&b, &there)); err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Errorf("other numbers: %v", err)
	}
	if !bytes.Equal(first, pack(t, g)) {
		t.Error("the copy's pack differs")
	}
	for _, name := range []string{"report.html", "journal"} {
		if _, err := os.Stat(g.Path(name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was packed", name)
		}
	}
}

type entry struct {
	name, text string
	kind       byte
}

func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.text)), Typeflag: e.kind}
		if e.kind == tar.TypeSymlink {
			h.Linkname, h.Size, e.text = "/etc/passwd", 0, ""
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func line(name, text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:]) + "  " + name + "\n"
}

// A pack is not trusted: Unpack writes only inside the folder, and either the pack is
// complete or nothing is left.
func TestBadPacks(t *testing.T) {
	lock := "study.lock.json"
	good := archive(t, entry{manifest, line(lock, "{}"), tar.TypeReg}, entry{lock, "{}", tar.TypeReg})
	if _, err := Unpack(bytes.NewReader(good), filepath.Join(t.TempDir(), "good")); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	for name, c := range map[string]struct {
		pack []byte
		want string
	}{
		"no gzip":          {[]byte("PK"), ""},
		"cut":              {good[:len(good)-20], ""},
		"no manifest":      {archive(t, entry{lock, "{}", tar.TypeReg}), "not a pack of a study"},
		"another content":  {archive(t, entry{manifest, line(lock, "{}"), tar.TypeReg}, entry{lock, "[]", tar.TypeReg}), "hash"},
		"one more":         {archive(t, entry{manifest, line(lock, "{}"), tar.TypeReg}, entry{lock, "{}", tar.TypeReg}, entry{"runs/x", "", tar.TypeReg}), "not in the pack's manifest"},
		"twice":            {archive(t, entry{manifest, line(lock, "{}"), tar.TypeReg}, entry{lock, "{}", tar.TypeReg}, entry{lock, "{}", tar.TypeReg}), "not in the pack's manifest"},
		"one less":         {archive(t, entry{manifest, line(lock, "{}") + line("runs/x", ""), tar.TypeReg}, entry{lock, "{}", tar.TypeReg}), "but not in the pack"},
		"a way out":        {archive(t, entry{manifest, line("../evil", "x"), tar.TypeReg}, entry{"../evil", "x", tar.TypeReg}), "invalid line"},
		"a way out, deep":  {archive(t, entry{manifest, line("runs/../../evil", "x"), tar.TypeReg}, entry{"runs/../../evil", "x", tar.TypeReg}), "invalid line"},
		"absolute":         {archive(t, entry{manifest, line("/tmp/evil", "x"), tar.TypeReg}, entry{"/tmp/evil", "x", tar.TypeReg}), "invalid line"},
		"a link":           {archive(t, entry{manifest, line("runs", ""), tar.TypeReg}, entry{"runs", "", tar.TypeSymlink}), "not a regular file"},
		"what packs never": {archive(t, entry{manifest, line("journal/x", ""), tar.TypeReg}, entry{"journal/x", "", tar.TypeReg}), "invalid line"},
		"no study in it":   {archive(t, entry{manifest, line("runs/x", ""), tar.TypeReg}, entry{"runs/x", "", tar.TypeReg}), "not a study folder"},
	} {
		parent := t.TempDir()
		_, err := Unpack(bytes.NewReader(c.pack), filepath.Join(parent, "in", "..", "dir"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(parent); len(left) > 0 {
			t.Errorf("%s: %v is left", name, left)
		}
	}
	dir := t.TempDir()
	if _, err := Unpack(bytes.NewReader(good), dir); !errors.Is(err, fs.ErrExist) {
		t.Errorf("into what is there: %v", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("what was there is gone: %v", err)
	}
}

// A small pack of many large files fills no disk.
func TestAPackHasSoMuchRoom(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	if _, n, err := extract(strings.NewReader("1234"), name, 5); n != 4 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, _, err := extract(strings.NewReader("1234"), name+"b", 4); err == nil || !strings.Contains(err.Error(), "16 GiB together") {
		t.Error(err)
	}
}

// TestAttackAPackOfLinks: root packs a folder of another user's, who has a link in it to a file that only root reads.
func TestAttackAPackOfLinks(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"missed.json", "env"} {
		f := folderOf(t, simulate(t, pairs))
		to := secret
		if name == "env" {
			to = filepath.Dir(secret)
		}
		if err := os.Symlink(to, f.Path(name)); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := Pack(&b, f); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: a pack of %d bytes, %v", name, b.Len(), err)
		}
	}
}
