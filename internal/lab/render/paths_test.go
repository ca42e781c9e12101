package render

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// A thread that moved is drawn over CPUs and over cores. A run without a migration, an
// invalid run and a later repetition are not drawn.
func TestPathsAreDrawn(t *testing.T) {
	run := func(verdict result.Verdict, n int, path ...result.Stay) result.Run {
		c := study.Cell{Kind: study.Main, Levels: []study.Level{{Factor: "placement", Value: "neutral"}}}
		return result.Run{Cell: c, Verdict: verdict, N: n, Window: result.Window{To: 10 * time.Second},
			Parts: []result.Part{{Name: "vm", Audit: &result.Audit{Cores: []int{0, 1, 0, 1}, Migrations: []result.Migrations{{Thread: "77", Path: path}}}}}}
	}
	moved := []result.Stay{{CPU: 1}, {At: 2 * time.Second, CPU: 3}, {At: 4 * time.Second, CPU: 0}}
	r := &Report{Runs: []result.Run{run(result.Valid, 0, moved...), run(result.Valid, 0), run(result.Invalid, 0, moved...), run(result.Valid, 1, moved...)}}
	plots := r.paths()
	if len(plots) != 2 || !strings.Contains(plots[0].Title, "logical CPU, placement=neutral") || !strings.Contains(plots[1].Title, "physical core") {
		t.Fatalf("%d plots: %+v", len(plots), plots)
	}
	// 1 → 3 → 0 is two steps over CPUs, and one over cores.
	line := regexp.MustCompile(`<path class="[^"]*s0[^"]*" d="([^"]*)"`)
	heights := func(svg string) int {
		m := line.FindStringSubmatch(svg)
		if m == nil {
			t.Fatalf("no line in %s", svg)
		}
		seen := map[string]bool{}
		for _, point := range strings.FieldsFunc(m[1], func(r rune) bool { return r == 'M' || r == 'L' }) {
			_, y, _ := strings.Cut(point, " ")
			seen[y] = true
		}
		return len(seen)
	}
	if a, b := heights(plots[0].SVG), heights(plots[1].SVG); a != 3 || b != 2 {
		t.Errorf("%d heights over CPUs and %d over cores, want 3 and 2:\n%s", a, b, plots[0].SVG)
	}
}
