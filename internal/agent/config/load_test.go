package config

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/keyed"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

var update = flag.Bool("update", false, "accept what is printed as what is wanted")

func part(a *txtar.Archive, name string) (*txtar.File, bool) {
	i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == name })
	if i < 0 {
		return nil, false
	}
	return &a.Files[i], true
}

func lines(a *txtar.Archive, name string) []string {
	f, ok := part(a, name)
	if !ok {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(f.Data), "\n"), "\n")
}

// TestProblems: every file of testdata/problems has a configuration in up to three
// sources and all its problems.
func TestProblems(t *testing.T) {
	files, err := filepath.Glob("testdata/problems/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			file, err := filepath.Abs(file)
			if err != nil {
				t.Fatal(err)
			}
			t.Chdir(t.TempDir())
			name := ""
			if f, ok := part(a, "agent.yaml"); ok {
				name = f.Name
				if err := os.WriteFile(name, f.Data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c, err := Load(name, lines(a, "env"), lines(a, "set"))
			var invalid *InvalidError
			if c != nil || !errors.As(err, &invalid) {
				t.Fatalf("got %v, %v; want problems", c, err)
			}
			for _, p := range invalid.Problems {
				if p.Key == "" || p.Value == "" || p.Want == "" {
					t.Errorf("%+v leaves something open", p)
				}
			}
			want, _ := part(a, "want")
			got := err.Error() + "\n"
			if *update {
				want.Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got != string(want.Data) {
				t.Errorf("got:\n%swant:\n%s", got, want.Data)
			}
		})
	}
}

func TestFileCannotBeRead(t *testing.T) {
	if _, err := Load("no/such/file.yaml", nil, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	for _, text := range []string{"a: [", "\t", "tick: 1s\n---\na: ["} {
		if _, err := Load(write(t, text), nil, nil); err == nil || !strings.Contains(err.Error(), "read configuration") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

func write(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func load(t testing.TB, text string, environ, settings []string) *Agent {
	t.Helper()
	c, err := Load(write(t, text), environ, settings)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Later sources override earlier ones key by key: defaults, file, environment, --set;
// of several --set the last.
func TestPrecedence(t *testing.T) {
	file := "sampling: {period: 50s, duration: 2s}\nlog_level: debug\nsignals: [cpi]\nenforce: {rate: 0.2}\n"
	environ := []string{"QUELL_SAMPLING_PERIOD=40s", "QUELL_LOG_LEVEL=warn", "QUELL_SIGNALS=cpt runq",
		"QUELL_NO_SUCH_KEY=1", "QUELL_PROGRESS=/x", "HOME=/root"}
	settings := []string{"sampling.period=35s", "sampling.period=30s", "machine=a=b"}
	for _, c := range []struct {
		name              string
		file              string
		environ, settings []string
		period            time.Duration
		level             string
		signals           string
		rate              float64
		machine           string
	}{
		{"defaults", "", nil, nil, time.Minute, "info", "cpi cpt runq", 0.1, ""},
		{"file", file, nil, nil, 50 * time.Second, "debug", "cpi", 0.2, ""},
		{"environment", file, environ, nil, 40 * time.Second, "warn", "cpt runq", 0.2, ""},
		{"flags", file, environ, settings, 30 * time.Second, "warn", "cpt runq", 0.2, "a=b"},
		{"flags over defaults", "", nil, settings, 30 * time.Second, "info", "cpi cpt runq", 0.1, "a=b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.environ)
			a := load(t, c.file, c.environ, c.settings)
			if a.Sampling.Period != c.period || a.LogLevel != c.level || strings.Join(a.Signals, " ") != c.signals ||
				a.Enforce.Rate != c.rate || a.Machine != c.machine {
				t.Errorf("got period %v, level %s, signals %v, rate %g, machine %q", a.Sampling.Period, a.LogLevel, a.Signals, a.Enforce.Rate, a.Machine)
			}
			if !slices.Equal(before, c.environ) {
				t.Errorf("the caller's environment was changed to %q", c.environ)
			}
		})
	}
}

// Every key with a single value in a file can be set in the environment, and no two
// keys share a variable.
func TestEnvironmentNamesEveryKey(t *testing.T) {
	seen := map[string]string{}
	a := Default()
	keyed.Walk(&a, func(key string, f reflect.StructField, v reflect.Value) {
		name := "QUELL_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
		if other := seen[name]; other != "" {
			t.Errorf("%s stands for %s and %s", name, other, key)
		}
		seen[name] = key
		if f.Tag.Get("help") == "" {
			t.Errorf("%s has no help", key)
		}
		if key == "rules" {
			return
		}
		// The default as text must be accepted as input.
		text := strings.Trim(literal(v), `[]"`)
		if got := load(t, "", []string{name + "=" + text}, nil); !reflect.DeepEqual(*got, *load(t, "", nil, nil)) {
			t.Errorf("%s=%s changed something", name, text)
		}
	})
	if len(seen) < 30 {
		t.Errorf("only %d keys", len(seen))
	}
}

func TestFileForms(t *testing.T) {
	for _, c := range []struct {
		name, text string
		check      func(*Agent) bool
	}{
		{"empty", "", func(a *Agent) bool { return a.Tick == time.Second }},
		{"only comments", "# nothing\n\n", func(a *Agent) bool { return a.Tick == time.Second }},
		{"an empty section keeps the defaults", "sampling:\ntick: 2s\n", func(a *Agent) bool { return a.Sampling.Period == time.Minute && a.Tick == 2*time.Second }},
		{"null is no name", "machine: ~\n", func(a *Agent) bool { return a.Machine == "" }},
		{"a number may be a name", "machine: 17\n", func(a *Agent) bool { return a.Machine == "17" }},
		{"no rules at all", "rules: []\n", func(a *Agent) bool { return len(a.Rules) == 0 }},
		{"given rules replace the defaults", "rules: [{match: /x, class: batch}]\n", func(a *Agent) bool { return len(a.Rules) == 1 && a.Rules[0].Class == sample.Batch }},
		{"anchors", "rules:\n- &a {match: /x/*, class: batch, signals: &s [cpt]}\n- {match: /y, class: batch, signals: *s}\n- *a\n",
			func(a *Agent) bool {
				return a.Rules[1].Signals[0] == "cpt" && a.Rules[2].Match == "/x/*"
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if a := load(t, c.text, nil, nil); !c.check(a) {
				t.Errorf("got %+v", a)
			}
		})
	}
}

// FuzzLoad: no file causes a panic, and an accepted configuration is valid.
func FuzzLoad(f *testing.F) {
	f.Add(Reference())
	f.Add("a: &a [*a]\n")
	f.Add("rules: &r [{match: /x, class: batch, signals: *r}]\n")
	f.Add("rules: [~, ~]\nsampling: ~\n")
	f.Add("tick: 1e300h\nspec: {age_weight: -.inf}\n")
	f.Add("{? [a, b] : c}")
	f.Fuzz(func(t *testing.T, text string) {
		a := Default()
		l := keyed.Reader{File: "f"}
		if err := l.Document(&a, []byte(text)); err != nil {
			return
		}
		for _, p := range l.Problems {
			if !strings.HasPrefix(p.Where, "f:") {
				t.Errorf("%v is nowhere", p)
			}
		}
		if len(l.Problems) == 0 && len(a.Validate()) == 0 {
			if a.Tick <= 0 || a.Sampling.Duration > a.Sampling.Period || len(a.Signals) == 0 {
				t.Errorf("accepted %+v", a)
			}
		}
	})
}

// A cap's longest total duration must not be shorter than its lease.
func TestLongestIsNoShorterThanACap(t *testing.T) {
	for text, want := range map[string]bool{"0s": true, "5m": true, "1h": true, "4m": false} {
		_, err := Load("", nil, []string{"enforce.longest=" + text})
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "at least enforce.for, 5m0s") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
