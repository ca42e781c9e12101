package logbook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// BenchmarkAnswer compares a query of the book with reading the complete log once in
// the same run: 100,000 incidents, each with a chart of ten minutes.
func BenchmarkAnswer(b *testing.B) {
	const n = 100_000
	dir := b.TempDir()
	var log bytes.Buffer
	for i := range n {
		inc := incident.Record{Incident: plan.Incident{ID: fmt.Sprintf("inc-20251121T120000.000-%d", i), Machine: "node-3", Signal: sample.CPI,
			Victim: sample.Task{Name: sample.TaskName(fmt.Sprintf("/kubepods/pod%d/web", i%500)), Class: sample.LatencySensitive},
			Opened: sample.Millis(i), Updated: sample.Millis(i), Closed: sample.Millis(i), Analysis: plan.Analysis{Result: detect.Result{Kind: detect.Neighbour, Suspects: make([]detect.Suspect, 5)}}}}
		for p := range 10 {
			inc.Times, inc.VictimCost = append(inc.Times, sample.Millis(p)), append(inc.VictimCost, 1.25)
		}
		line, err := json.Marshal(inc)
		if err != nil {
			b.Fatal(err)
		}
		log.Write(append(line, '\n'))
	}
	if err := os.WriteFile(filepath.Join(dir, Name), log.Bytes(), 0o600); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	book, err := Read(dir)
	if err != nil || len(book.entries) != n {
		b.Fatal(err)
	}
	opened := time.Since(began)
	began = time.Now()
	if _, err := Load(dir); err != nil {
		b.Fatal(err)
	}
	whole := time.Since(began)
	for name, ask := range map[string]func() error{
		"newest-100": func() error { _, _, err := book.List(Query{Limit: 100}); return err },
		"one":        func() error { _, err := book.Incident("last"); return err },
		"of-victim":  func() error { _, _, err := book.List(Query{Victim: "*pod7/web", Limit: 100}); return err },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := ask(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(whole)*float64(b.N)/float64(b.Elapsed()), "whole/answer")
			b.ReportMetric(float64(whole)/float64(opened), "whole/open")
		})
	}
}
