package trace

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/sample"
)

func TestServed(t *testing.T) {
	for _, c := range []struct {
		text string
		want []sample.Served
	}{
		{"", nil},
		{"[]", []sample.Served{}},
		{`[{"by":"/a","s":0.125,"fair":0.25},{"by":"(other)","s":1e-09}]`, []sample.Served{{By: "/a", Time: 0.125, Fair: 0.25}, {By: "(other)", Time: 1e-9}}},
		{`[{"by":"/\"\\\u0001ü","s":0}]`, []sample.Served{{By: "/\"\\\x01ü"}}},
		{`[{"by64":"L/8=","s":2}]`, []sample.Served{{By: "/\xff", Time: 2}}},
	} {
		if got := string(AppendServed(nil, c.want)); got != c.text {
			t.Errorf("%+v is written %s, want %s", c.want, got, c.text)
		}
		got, err := reader().Read([]byte(c.text))
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", c.text, err, diff)
		}
	}
	// What other programs may write.
	want := []sample.Served{{By: "/a/\u00fc", Time: 5, Fair: 0.5}}
	for _, text := range []string{
		` [ { "s" : 5.0 , "fair":5e-1, "by" : "/a\/\u00fc" } ] `, `[{"by":"/a/ü","s":5,"fair":0.5,"since":17,"how":"a \"queue\""}]`,
	} {
		got, err := reader().Read([]byte(text))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", text, err, diff)
		}
	}
	for _, text := range []string{"x", "[", "[]]", "[] x", "[1]", "{}", "[{]", `[{"by"}]`, `[{"by":1}]`, `[{"by":"a}]`, `[{"by":"a\"}]`, `[{"by":"\x"}]`, "[{\"by\":\"\xff\"}]",
		`[{"by":"a","s":x}]`, `[{"by":"a","s":}]`, `[{"by":"a","s":1e999}]`, `[{"by":"a","s":0x1p4}]`, `[{"by64":"*"}]`, `[{"by":"a"},]`, `[{"by":"a"} {"by":"a"}]`, `[{"by":"a" "s":1}]`, "[{\"by\":\"\t\"}]"} {
		if got, err := reader().Read([]byte(text)); err == nil {
			t.Errorf("%s is %+v", text, got)
		}
	}
}

func reader() *ServedReader { return &ServedReader{Intern: func(b []byte) string { return string(b) }} }

// What is read is not overwritten by what is read later, however much that is.
func TestServedIsKept(t *testing.T) {
	r := reader()
	var texts []string
	var all [][]sample.Served
	for n := range 200 {
		text := string(AppendServed(nil, make([]sample.Served, n)))
		text = strings.ReplaceAll(text, `"by":""`, `"by":"`+strings.Repeat("x", n)+`"`)
		got, err := r.Read([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read([]byte(`[{"by":"a"},{"by":"b"},{`)); err == nil {
			t.Fatal("half a list was read")
		}
		texts, all = append(texts, text), append(all, got)
		_ = append(got, sample.Served{By: "beyond"})
	}
	for i := range all {
		if got := string(AppendServed(nil, all[i])); got != texts[i] {
			t.Fatalf("%s, want %s", got, texts[i])
		}
	}
}

// A row without the list costs no memory; one with it costs a part of an allocation.
func TestServedAllocates(t *testing.T) {
	names := map[string]string{"/a": "/a", "/b": "/b"}
	r := &ServedReader{Intern: func(b []byte) string { return names[string(b)] }}
	for _, c := range []struct {
		field string
		most  float64
	}{{"", 0}, {"[]", 0.1}, {`[{"by":"/a","s":0.125,"fair":0.25},{"by":"/b","s":0.5}]`, 0.1}} {
		field := []byte(c.field)
		if n := testing.AllocsPerRun(1000, func() {
			if _, err := r.Read(field); err != nil {
				t.Fatal(err)
			}
		}); n > c.most {
			t.Errorf("%q: %v allocations", c.field, n)
		}
	}
}

// What was read is written so that encoding/json and Read both read the same.
func FuzzServed(f *testing.F) {
	f.Add([]byte(`[{"by":"/a","s":0.125,"fair":0.25},{"by64":"L/8=","s":2}]`))
	f.Add([]byte(` [ { "s" : 5.0 , "x":5e-1, "by" : "/a\/\u00fc\ud800" } ] `))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := reader().Read(text)
		if err != nil || checkServed(got) != nil {
			return
		}
		out := AppendServed(nil, got)
		again, err := reader().Read(out)
		if diff := cmp.Diff(got, again); diff != "" || err != nil {
			t.Fatalf("%q, written %s: %v, %s", text, out, err, diff)
		}
		if got == nil {
			return
		}
		var twin []struct {
			By, By64 string
			S, Fair  float64
		}
		if err := json.Unmarshal(out, &twin); err != nil || len(twin) != len(got) {
			t.Fatalf("%s: %v", out, err)
		}
		for i, one := range twin {
			if bytes, err := base64.StdEncoding.DecodeString(one.By64); err != nil || len(bytes) > 0 {
				one.By = string(bytes)
			}
			if want := (sample.Served{By: sample.TaskName(one.By), Time: one.S, Fair: one.Fair}); got[i] != want {
				t.Fatalf("%s: %+v, encoding/json reads %+v", out, got[i], want)
			}
		}
	})
}
