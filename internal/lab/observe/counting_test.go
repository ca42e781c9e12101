package observe

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// toldSource reports, for each added cgroup in order, the reading in says. It reports
// nothing for the cgroups beyond the end of says.
type toldSource struct {
	counter.Source
	says    []counter.Reading
	refuses error // the error of Start
	keys    []sample.TaskKey
	calls   []string
}

func (s *toldSource) Add(t counter.Target) error {
	s.keys = append(s.keys, t.Key)
	return nil
}

func (s *toldSource) Start() error {
	s.calls = append(s.calls, "start")
	return s.refuses
}

func (s *toldSource) Stop(_ counter.WindowEnd, yield func(sample.TaskKey, counter.Reading)) error {
	s.calls = append(s.calls, "stop")
	for i, r := range s.says {
		yield(s.keys[i], r)
	}
	return nil
}

func (s *toldSource) Close() error {
	s.calls = append(s.calls, "close")
	return nil
}

// parted returns parts with their own cgroups in v2, and one part that has none.
func parted(t *testing.T, names ...string) (*host.Host, []*part) {
	t.Helper()
	files := map[string]string{"/proc/self/mountinfo": "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"}
	for _, name := range names {
		files["/sys/fs/cgroup/"+name+"/cgroup.procs"] = ""
		files["/sys/fs/cgroup/"+name+"/cpu.stat"] = "usage_usec 0\n"
	}
	h := tree(t, files)
	var parts []*part
	for _, name := range append(names, "bare") {
		p := &part{name: name, host: h, dirs: map[string]string{}, missing: map[string]string{}, costs: map[string]float64{}}
		if name != "bare" {
			p.dirs[""] = "/sys/fs/cgroup/" + name
		}
		parts = append(parts, p)
	}
	return h, parts
}

// A signal that a source counts is reported for each part, or the part says why it is
// missing.
func TestSignalsThatSourcesCount(t *testing.T) {
	_, parts := parted(t, "web", "idle", "gone")
	src := &toldSource{says: []counter.Reading{{Cost: 0.25}, {Cost: math.NaN()}}}
	c := openCounting("net", func() (counter.Source, error) { return src, nil }, parts)
	if len(src.keys) != 3 {
		t.Fatalf("%d parts are counted, want 3: %v", len(src.keys), parts[0].missing)
	}
	c.window(true)
	c.window(false)
	if err := errors.Join(c.close(), c.close()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(src.calls, " "); got != "start stop close" {
		t.Errorf("it was asked to %s", got)
	}
	var values []float64
	for i, why := range []string{"", "no request or packet", "not counted", "no cgroup of its own"} {
		events, missing := parts[i].counts()
		if v, ok := events["signal.net"]; ok {
			values = append(values, v)
		}
		if got := missing["signal.net"]; (why == "") != (got == "") || !strings.Contains(got, why) {
			t.Errorf("%s: %q, want it to say %q", parts[i].name, got, why)
		}
	}
	if !slices.Equal(values, []float64{0.25}) {
		t.Errorf("values %v", values)
	}
}

func TestSourcesThatFail(t *testing.T) {
	no := &counter.NotSupportedError{What: "network queues", Reason: "no BTF", Remedy: "a newer kernel"}
	for name, open := range map[string]func() (counter.Source, error){
		"no BTF":     func() (counter.Source, error) { return nil, no },
		"no program": func() (counter.Source, error) { return &toldSource{refuses: errors.New("no program")}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			_, parts := parted(t, "web")
			if c := openCounting("net", open, parts); c != nil {
				c.window(true)
				c.window(false)
				if err := c.close(); err != nil {
					t.Error(err)
				}
			}
			if events, missing := parts[0].counts(); len(events) != 0 || !strings.Contains(missing["signal.net"], name) {
				t.Errorf("%v, missing %v", events, missing)
			}
		})
	}
}

// A study asks for signals by name: signals of sources, signals of events, and one that
// does not exist.
func TestWhichSignalsTheLabCounts(t *testing.T) {
	h, _ := parted(t, "web")
	opened := 0
	o := Options{Host: h, Observe: study.Observe{Signals: []string{"net", "steal"}},
		sources: map[string]func() (counter.Source, error){"net": func() (counter.Source, error) { opened++; return &toldSource{}, nil }}}
	put(t, h.Path("/"), "/sys/devices/system/cpu/online", "0")
	put(t, h.Path("/"), "/proc/cpuinfo", "vendor_id\t: x\n")
	put(t, h.Path("/"), "/proc/vmstat", "pswpin 0\npswpout 0\noom_kill 0\n")
	put(t, h.Path("/"), "/proc/stat", "cpu 0 0 0 0\n")
	obs, err := o.open(lab.Observed{Cell: &study.Cell{}, Names: []string{"web"}, Envs: []lab.Environment{&still{}}, Start: time.Now(), Sets: [][]sample.Set{{sample.SetOf(0)}}})
	if err != nil {
		t.Fatal(err)
	}
	parts := []result.Part{{Name: "web"}}
	if _, err := obs.Close(parts); err != nil {
		t.Fatal(err)
	}
	if want := "counts cpi, cps, io, net, runq only"; opened != 1 || !strings.Contains(parts[0].Missing["signal.steal"], want) {
		t.Errorf("opened %d times, missing %v, want %q", opened, parts[0].Missing, want)
	}
}
