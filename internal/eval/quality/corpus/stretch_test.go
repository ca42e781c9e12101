package main

import (
	"io"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace/recording"
)

func TestStretchesAreReadAsWritten(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	for _, s := range []stretch{
		{calm: true}, {}, {phase: "/corpus/perl"},
		{antagonists: []antagonist{{"/corpus/xz", "cpu"}}},
		{antagonists: []antagonist{{"/corpus/xz", "cpu"}, {"/corpus/stream-3", "memory"}}},
	} {
		s.from, s.to = at, at.Add(16*time.Second)
		from, to, antagonist, err := parseStretch(s.String())
		if err != nil || from != sample.At(s.from) || to != sample.At(s.to) || antagonist != (len(s.antagonists) > 0) {
			t.Errorf("%q: %d to %d, antagonist %t, %v", s.String(), from, to, antagonist, err)
		}
	}
	for _, bad := range []string{"", "1 2", "1 x calm"} {
		if from, to, _, err := parseStretch(bad); err == nil {
			t.Errorf("%q: %d to %d", bad, from, to)
		}
	}
}

// A recording is read with the labels that were computed for it.
func TestSavedLabels(t *testing.T) {
	p, err := loadPrograms()
	if err != nil {
		t.Fatal(err)
	}
	s := p.scenes(test, onCPUs, 1)[0]
	start := time.UnixMilli(1_700_000_000_000)
	r := &sceneRecording{scene: &s}
	done := map[string]work{}
	first := programsOf(p.Antagonists, test, onCPUs)[0]
	hurt := antagonist{"/corpus/" + sample.TaskName(first.Name), first.Cause}
	for i := range 5 {
		from := start.Add(time.Duration(i) * 15 * time.Second)
		one := stretch{from: from, to: from.Add(15 * time.Second), calm: i%2 == 0}
		if i%2 == 1 {
			one.antagonists = []antagonist{hurt}
		}
		r.stretches = append(r.stretches, one)
	}
	for second := range 75 {
		for k, v := range s.victims {
			pieces := 200
			if second/15 == 1+2*k {
				pieces = 100 // each victim is hurt once
			}
			x := sample.Sample{TS: sample.At(start.Add(time.Duration(second+1) * time.Second)), Machine: s.name, Job: sample.JobName(v.Name), Task: sample.TaskName("/corpus/" + v.Name),
				Signal: sample.CPT, CPU: 0.5, Cost: 0.5 / float32(pieces), Coverage: 1}
			x.Extras.Set(sample.Transactions, float64(pieces))
			r.samples = append(r.samples, x)
			for n := range pieces {
				done[v.Name] = append(done[v.Name], start.Add(time.Duration((float64(second)+float64(n)/float64(pieces))*1e9)))
			}
		}
	}
	r.computeLabels(done)
	file := filepath.Join(t.TempDir(), s.name+".csv.gz")
	if err := r.save(file); err != nil {
		t.Fatal(err)
	}
	f, err := recording.Open(file, recording.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil { // labels are known after the last sample
		err = f.Read(&sample.Sample{})
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	labels, _ := f.Labels()
	if len(labels) != 2 || !reflect.DeepEqual(labels, r.labels) || !reflect.DeepEqual(f.Unlabelled(), r.unknown) {
		t.Errorf("%+v, not known %+v; want %+v, %+v", labels, f.Unlabelled(), r.labels, r.unknown)
	}
	alone, err := withoutAntagonists(file)
	if err != nil {
		t.Fatal(err)
	}
	if calm, hurt := alone(sample.At(start.Add(10*time.Second))), alone(sample.At(start.Add(20*time.Second))); !calm || hurt {
		t.Errorf("without antagonists: %t in a calm stretch, %t next to an antagonist", calm, hurt)
	}
}
