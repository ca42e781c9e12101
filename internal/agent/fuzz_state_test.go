package agent

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// FuzzStateFiles: whatever content an earlier agent, or a faulty disk, has left in the
// state directory, the agent starts, judges with valid numbers or none, and can write
// its state again.
func FuzzStateFiles(f *testing.F) {
	h := spec.NewHistory(spec.OwnHistory())
	k := spec.Key{Job: "web", Platform: "test", Signal: sample.CPI, Variant: "ref-cycles"}
	for i := range 200 {
		h.Add(k, sample.TaskKey{Inode: 7, FirstSeen: 1}, sample.Millis(i)*60_000, 1, 1.5+float64(i%7)/100, 0)
	}
	text, err := json.Marshal(specFile{specVersion, h.Records()})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text, []byte(`{"mode":"on","protected":["/a"]}`))
	f.Add([]byte(`{"version":1,"records":[{"job":"a","cost":{"n":-1,"mean":1e308,"m2":-5}}]}`), []byte(`{}`))
	f.Add([]byte(`{"version":1,"records":null}`), []byte(`[]`))
	f.Add([]byte(`{}`), []byte(`{"mode":"hard","protect":[{"job":"web","on":true},{"on":false}],"decisions":[{"id":"a","who":"b","at":1,"why":"r","enforcement":{"mode":"on"}},{"id":"c"}]}`))
	f.Add(text[:len(text)/2], []byte(``))
	f.Fuzz(func(t *testing.T, specs, set []byte) {
		// As disk.load does, without a disk, which would allow only three executions a
		// second.
		h := spec.NewHistory(spec.OwnHistory())
		var file specFile
		if json.Unmarshal(specs, &file) == nil {
			h.Restore(file.Records)
		}
		var o overrides
		if json.Unmarshal(set, &o) == nil {
			_ = o.restore("m")
			if d := command.Newest(o.all(), "m", 1); d != nil && d.Validate() != nil {
				t.Errorf("an invalid override holds: %+v", d)
			}
			if _, err := json.Marshal(o); err != nil {
				t.Errorf("what was read of overrides cannot be written: %v", err)
			}
		}
		at := sample.At(time.Unix(1e9, 0))
		for _, r := range h.Records() {
			s, ready := h.Lookup(r.Key, at)
			if ready && (math.IsNaN(s.Mean) || math.IsInf(s.Mean, 0) || !(s.StdDev >= 0)) {
				t.Errorf("judges by %+v", s)
			}
			h.Add(r.Key, sample.TaskKey{Inode: 1, FirstSeen: 1}, at, 1, 1, 0)
		}
		if _, err := json.Marshal(specFile{specVersion, h.Records()}); err != nil {
			t.Errorf("what was read of specs cannot be written: %v", err)
		}
	})
}
