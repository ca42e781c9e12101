package page

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode"

	"github.com/quell-dev/quell/internal/format/plot"
)

// hostile is a name that a task gives itself: "gpj.exe" is shown from right to left, a terminal is
// told to clear its screen, and bytes that are no text.
const hostile = "<script>alert(1)</script>\u202egpj.exe\x1b[2J\x00\u200b\xff"

// Whatever is written of a task, its name is shown as text, in the order of its characters.
func TestAttackNamesThatReorderAPage(t *testing.T) {
	line := plot.Series{Name: hostile, Line: true}
	line.Add(0, 1)
	line.Add(1, 2)
	chart := plot.Chart{Title: hostile, About: hostile, X: hostile, Y: hostile, Right: hostile, Series: []plot.Series{line}}
	bars := plot.Bars{Title: hostile, About: hostile, Unit: hostile, Series: []string{hostile, hostile}, Groups: []plot.Group{{Name: hostile, Values: []plot.Interval{{Value: 1}, {Value: 2}}}}}
	table := Table{Caption: hostile, Head: []string{hostile, hostile}, Rows: [][]Cell{Row(hostile, hostile)}}
	long := table
	long.Long = true
	p := Page{Title: hostile, Heading: hostile, Lead: []Lead{{Strong: hostile, Text: hostile}}, Points: []string{hostile}, Head: []Table{table},
		Sections: []Section{{ID: "a", Title: hostile, Notes: []string{hostile}, Exhibits: []Exhibit{{Title: hostile, Notes: []string{hostile}, Plots: []plot.Plot{chart.Draw(), bars.Draw()}, Table: long}}}}}
	var html, markdown bytes.Buffer
	if err := errors.Join(p.HTML(&html), p.MarkdownWith(&markdown, func(svg []byte) (string, error) {
		for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				return "a.svg", nil
			} else if err != nil {
				return "", err
			}
		}
	})); err != nil {
		t.Fatal(err)
	}
	for kind, text := range map[string]string{"HTML": html.String(), "Markdown": markdown.String()} {
		if i := strings.IndexFunc(text, func(r rune) bool {
			return r == unicode.ReplacementChar || r != '\n' && r != '\t' && !unicode.IsGraphic(r)
		}); i >= 0 {
			t.Errorf("%s: %q in it", kind, text[max(0, i-80):min(len(text), i+20)])
		}
		if strings.Contains(text, "<script>") || !strings.Contains(text, "gpj.exe") {
			t.Errorf("%s: the name is not shown as it is", kind)
		}
	}
}
