package pipeline_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/pipeline"
)

// An antagonist that follows the first one is drawn too, although it was absent when the
// incident began.
func TestAnAntagonistThatComesLaterIsDrawn(t *testing.T) {
	w := newWorld(t)
	w.run(strings.Split(`machine rule=quell mode=advise
task web, latency-sensitive, 1±0.5
task hog, batch
task late, batch
samples
     web  hog  late
  4* 1@1  0.1  -
  3* 4@1  2    -
  3* 1@1  0.1  0
  3* 4@1  0.1  3
  4* 1@1  0.1  0
  4* 4@1  0.1  3`, "\n"))
	inc := w.pair[0].Open()[0]
	i := slices.IndexFunc(inc.Usage, func(t pipeline.Track) bool { return t.Task == "late" })
	if len(inc.Findings) != 2 || i < 0 {
		t.Fatalf("it named %+v and draws %+v", inc.Findings, inc.Usage)
	}
	if n := len(inc.Times); inc.Usage[i].Usage[n-1] != 3 {
		t.Errorf("it used %v", inc.Usage[i].Usage)
	}
	w.end()
}
