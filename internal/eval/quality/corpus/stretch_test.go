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
	of := antagonists()
	for _, s := range []stretch{
		{calm: true}, {}, {phase: "/corpus/perl"},
		{antagonists: []antagonist{{sample.TaskName("/corpus/" + of[0].name), of[0].cause}}},
		{antagonists: []antagonist{{sample.TaskName("/corpus/" + of[1].name), of[1].cause}, {sample.TaskName("/corpus/" + of[2].name + "-3"), of[2].cause}}},
	} {
		s.from, s.to = at, at.Add(16*time.Second)
		got, err := parseStretch(s.String())
		if err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%q: %+v, %v; want %+v", s.String(), got, err, s)
		}
	}
	for _, bad := range []string{"", "1 2", "1 x calm", "1 2 phase", "1 2 /corpus/nobody", "1 2 /corpus/" + of[0].name + "-1", "1 2 /corpus/" + of[0].name + "er"} {
		if s, err := parseStretch(bad); err == nil {
			t.Errorf("%q: %+v", bad, s)
		}
	}
}

// A judgement from the recording alone equals that from the original scene.
func TestJudgedAgain(t *testing.T) {
	s := scenes(test, onCPUs, 1)[0]
	start := time.UnixMilli(1_700_000_000_000)
	r := &sceneRecording{scene: &s}
	done := map[string]work{}
	hurt := antagonist{"/corpus/" + sample.TaskName(programsOf(antagonists(), test, onCPUs)[0].name), programsOf(antagonists(), test, onCPUs)[0].cause}
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
			x := sample.Sample{TS: sample.At(start.Add(time.Duration(second+1) * time.Second)), Machine: s.name, Job: sample.JobName(v.name), Task: sample.TaskName("/corpus/" + v.name),
				Signal: sample.CPT, CPU: 0.5, Cost: 0.5 / float32(pieces), Coverage: 1}
			x.Extras.Set(sample.Transactions, float64(pieces))
			r.samples = append(r.samples, x)
			for n := range pieces {
				done[v.name] = append(done[v.name], start.Add(time.Duration((float64(second)+float64(n)/float64(pieces))*1e9)))
			}
		}
	}
	r.computeLabels(done)
	file := filepath.Join(t.TempDir(), s.name+".csv.gz")
	if err := r.save(file); err != nil {
		t.Fatal(err)
	}
	if err := relabel(file); err != nil {
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
}
