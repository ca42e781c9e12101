package origin

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// The layouts that runtimes were seen to use, with what is read from each path: testdata/layouts.txt
// has "path → origin as JSON", with the source of each group.
func TestParse(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "layouts.txt"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		path, want, ok := strings.Cut(line, " → ")
		if !ok {
			t.Fatalf("line %q", line)
		}
		n++
		o := Parse(path)
		got := "-"
		if o.Known() {
			got = describe(o)
		}
		if got != want {
			t.Errorf("%s\n got %s\nwant %s", path, got, want)
		}
	}
	if n < 50 {
		t.Errorf("%d layouts", n)
	}
}

// describe is the fields that are set.
func describe(o Origin) string {
	m := map[string]any{"runtime": o.Runtime}
	for k, v := range map[string]string{"id": o.ID, "pod": o.Pod, "qos": string(o.QoS), "space": o.Space, "local": o.Local} {
		if v != "" {
			m[k] = v
		}
	}
	if o.UID >= 0 {
		m["uid"] = o.UID
	}
	if o.Helper {
		m["helper"] = true
	}
	text, _ := json.Marshal(m)
	return string(text)
}

func FuzzParse(f *testing.F) {
	text, err := os.ReadFile(filepath.Join("testdata", "layouts.txt"))
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		path, _, _ := strings.Cut(line, " → ")
		f.Add(path)
	}
	f.Add(`/machine.slice/machine-\x2d\xzz\x00.scope`)
	f.Fuzz(func(t *testing.T, path string) {
		o := Parse(path)
		got := facts(o, nil, Process{Guest: path})
		if !o.Known() && o != (Origin{UID: o.UID}) {
			t.Errorf("%q: %+v of no runtime", path, o)
		}
		if o.Runtime == Kubernetes && (o.Pod == "" || o.ID == "" || got.Name != "") {
			t.Errorf("%q: %+v, %+v", path, o, got)
		}
		if strings.HasPrefix(got.Name, "/") || strings.HasPrefix(got.Job, "/") {
			t.Errorf("%q: %+v could be mistaken for a path", path, got)
		}
	})
}
