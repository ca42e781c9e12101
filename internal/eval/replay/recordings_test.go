package replay

import (
	"context"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace/recording"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

const traces = "../../../testdata/traces/"

// plain is the plain rule of CPI², for recordings too short to learn from: each task is
// compared with its own samples of the whole recording, at least 20 of them, at any CPU
// usage; a CPI outside 0.1 to 20 is a bad reading.
func plain(t *testing.T, rule detect.Method, step time.Duration) Options {
	t.Helper()
	o, err := Default(rule)
	if err != nil {
		t.Fatal(err)
	}
	o.ScaleTo(step)
	o.ByTask, o.Spec.MinSamples = true, 20
	cpi, _ := sample.LookupSignal(sample.CPI)
	cpi.LeastCPU, cpi.Min, cpi.Max = 0, 0.1, 20
	o.Signals, o.Detect.Switches.Bounds = map[sample.SignalName]sample.Signal{sample.CPI: cpi}, true
	return o
}

func open(t *testing.T, file string) *recording.Recording {
	t.Helper()
	var o recording.Options
	if filepath.Ext(file) == ".gz" && filepath.Ext(file[:len(file)-3]) == ".csv" {
		c, err := recording.LoadColumns("cgroup-counters")
		if err != nil {
			t.Fatal(err)
		}
		o.Columns = c
	}
	r, err := recording.Open(traces+file, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// kept is a recording in memory, for repeated replays.
type kept struct{ all, left []sample.Sample }

// keep reads a recording.
func keep(t *testing.T, file string) *kept {
	t.Helper()
	k := &kept{}
	r := open(t, file)
	var s sample.Sample
	for r.Read(&s) == nil {
		k.all = append(k.all, s)
	}
	if rep := r.Report(); rep.Bad != 0 || rep.Rows == 0 {
		t.Errorf("%s: %+v", file, rep)
	}
	return k
}

// Next implements Source.
func (k *kept) Next() (some []sample.Sample, err error) {
	if len(k.left) == 0 {
		return nil, io.EOF
	}
	n := min(batch, len(k.left))
	some, k.left = k.left[:n], k.left[n:]
	return some, nil
}

func play(t *testing.T, k *kept, o Options, whole bool) *Result {
	t.Helper()
	if whole {
		l := NewLearner(&o)
		for i := range k.all {
			l.Add(&k.all[i])
		}
		o.Specs = l.Specs(o.Spec.MinSamples)
	}
	k.left = k.all
	result, err := Run(context.Background(), k, o, 2)
	if err != nil {
		t.Fatal(err)
	}
	if result.Late != 0 {
		t.Errorf("%d late", result.Late)
	}
	return result
}

// The results of a script that shares no code with quell, on these recordings, by the
// paper's rule: docs/replay.md has the definitions.
func TestRecordings(t *testing.T) {
	var samples, outliers, anomalies int
	for _, c := range []struct {
		file                         string
		step                         time.Duration
		samples, outliers, anomalies int
		learning                     int // accusations of cpi2 if it learns during the replay
	}{
		{"kepler_coremark_2023.json.gz", 3 * time.Second, 2491, 103, 1, 0},
		{"rezolus_vllm.parquet", time.Second, 3317, 69, 5, 1},
		{"rezolus_AB_base.csv.gz", time.Second, 1281, 31, 2, 0},
		{"rezolus_AB_base_pin.csv.gz", time.Second, 1281, 34, 10, 0},
		{"rezolus_AB_level.csv.gz", time.Second, 1278, 35, 12, 0},
		{"rezolus_AB_level_pin.csv.gz", time.Second, 1281, 57, 10, 0},
		{"rezolus_sglang_gemma3.csv.gz", time.Second, 1831, 53, 2, 0},
		{"rezolus_vllm_gemma3.csv.gz", time.Second, 1821, 59, 0, 0},
	} {
		k := keep(t, c.file)
		for _, rule := range []detect.Method{detect.CPI2, detect.Quell, detect.EvidenceMethod} {
			r := play(t, k, plain(t, rule, c.step), true)
			if len(r.Accusations) != 0 {
				t.Errorf("%s, %s: %+v", c.file, rule, r.Accusations)
			}
			if rule == detect.CPI2 {
				if r.Judged != c.samples || r.Outliers != c.outliers || r.Anomalies != c.anomalies {
					t.Errorf("%s: %d samples, %d outliers, %d anomalies", c.file, r.Judged, r.Outliers, r.Anomalies)
				}
				if c.step == time.Second {
					samples, outliers, anomalies = samples+r.Judged, outliers+r.Outliers, anomalies+r.Anomalies
				}
			}
			o, err := Default(rule)
			if err != nil {
				t.Fatal(err)
			}
			o.ScaleTo(c.step)
			want := 0
			if rule == detect.CPI2 {
				want = c.learning
			}
			if r := play(t, k, o, false); len(r.Accusations) != want {
				t.Errorf("%s, %s, as an agent learns: %+v", c.file, rule, r.Accusations)
			}
		}
	}
	if samples != 12090 || outliers != 338 || anomalies != 41 {
		t.Errorf("Rezolus: %d samples, %d outliers, %d anomalies", samples, outliers, anomalies)
	}
}
