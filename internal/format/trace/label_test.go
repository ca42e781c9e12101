package trace

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/sample"
)

func TestLabels(t *testing.T) {
	want := []Label{
		{Machine: "m,1", Victim: "/a \"b\"", Antagonist: "#c", From: -5, To: 7, Cause: "cache"},
		{Victim: "/a", From: 8, To: 8},
	}
	var b bytes.Buffer
	w := NewWriter(&b)
	s := sample.Sample{TS: 5, Task: "/a", Signal: "cpi", Coverage: 1}
	left := []Stretch{{Machine: "m,1", Victim: "/a \"b\"", From: -5, To: 7}, {Victim: "#c", From: 8, To: 8}}
	for _, step := range []error{w.Unlabelled(left[0]), w.Labels(want[0]), w.Write(&s), w.Labels(want[1]), w.Unlabelled(left[1]), w.Write(&s), w.Flush()} {
		if step != nil {
			t.Fatal(step)
		}
	}
	r, err := NewReader(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for r.Read(&s) == nil {
		n++
	}
	got, labelled := r.Labels()
	if diff := cmp.Diff(want, got); diff != "" || !labelled || n != 2 || r.Report().Bad != 0 {
		t.Errorf("%d samples, labelled %v, %+v\n%s\n%s", n, labelled, r.Report(), diff, b.String())
	}
	if diff := cmp.Diff(left, r.Unlabelled()); diff != "" {
		t.Error(diff)
	}
}

func TestLabelled(t *testing.T) {
	const head = "ts,task,signal,cpu,cost\n"
	for _, c := range []struct {
		name, text string
		labelled   bool
		labels     int
		reasons    []string
	}{
		{"all but a stretch", head + "#unlabelled: m,/a,1,2\n", true, 0, nil},
		{"wrong stretches", head + "#unlabelled: m,,1,2\n#unlabelled: m,/a,2,1\n#unlabelled: m,/a,1,x\n#unlabelled: m,/a,/b,1,2,io\n", false, 0, []string{
			"line 2: invalid label: no victim", "line 3: invalid label: end 1 is before begin 2",
			`line 4: invalid label: strconv.ParseInt: parsing "x": invalid syntax`, "line 5: invalid label: want machine,victim,from,to"}},
		{"not labelled", head, false, 0, nil},
		{"other remarks", "# by hand\n" + head + "#\n#labels\n", false, 0, nil},
		{"labelled, without a victim", head + labelHeader + "\n", true, 0, nil},
		{"before the header", labelHeader + "\n#label: m,/a,/b,1,2,io\n" + head, true, 1, nil},
		{"wrong labels", head + "#label: m,/a,/a,1,2,io\n#label: m,/a,/b,2,1,io\n#label: m,/a,/b,x,1,io\n#label: m,/a\n#label: ,,,1,2,\n", false, 0, []string{
			"line 2: invalid label: /a is its own antagonist", "line 3: invalid label: end 1 is before begin 2",
			`line 4: invalid label: strconv.ParseInt: parsing "x": invalid syntax`,
			"line 5: invalid label: want machine,victim,antagonist,from,to,cause", "line 6: invalid label: no victim"}},
	} {
		r, err := NewReader(strings.NewReader(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var s sample.Sample
		for r.Read(&s) == nil {
			t.Errorf("%s: a sample", c.name)
		}
		labels, labelled := r.Labels()
		if labelled != c.labelled || len(labels) != c.labels {
			t.Errorf("%s: labelled %v with %v", c.name, labelled, labels)
		}
		if diff := cmp.Diff(c.reasons, r.Report().Reasons); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

func TestWriterRefusesLabels(t *testing.T) {
	w := NewWriter(failing{errors.New("disk full")})
	for _, l := range []Label{{}, {Victim: "a\nb"}, {Victim: "a", From: 1}, {Victim: "a", Cause: strings.Repeat("x", maxLine)}} {
		if err := w.Labels(l); !errors.Is(err, ErrLabel) {
			t.Errorf("%.40v: %v", l, err)
		}
	}
	for _, l := range []Stretch{{}, {Victim: "a", Machine: "m\n"}, {Victim: "a", From: 1}, {Victim: "a", Machine: strings.Repeat("x", maxLine)}} {
		if err := w.Unlabelled(l); !errors.Is(err, ErrLabel) {
			t.Errorf("%.40v: %v", l, err)
		}
	}
}
