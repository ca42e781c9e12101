package replay

import (
	"context"
	"hash/fnv"
	"io"
	"sync"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Source returns samples, any number at a time, possibly none, and io.EOF at the end. They
// are valid until the next call. *recording.Recording is one.
type Source interface {
	Next() ([]sample.Sample, error)
}

const (
	batch = 1024
	// queue is the number of batches that wait for a worker: a long run of samples of one
	// machine should not block the other workers.
	queue = 4
)

// Run plays all samples of a source on the given number of goroutines, each with its own
// machines; the result does not depend on that number. It ends early with ctx.
func Run(ctx context.Context, src Source, o Options, workers int) (*Result, error) {
	workers = max(workers, 1)
	players := make([]*Replayer, workers)
	full := make([]chan []sample.Sample, workers)
	empty := make(chan []sample.Sample, workers*(queue+2))
	var wg sync.WaitGroup
	for i := range players {
		players[i], full[i] = New(o), make(chan []sample.Sample, queue)
		for range queue + 2 {
			empty <- make([]sample.Sample, 0, batch)
		}
		wg.Go(func() {
			for some := range full[i] {
				for k := range some {
					players[i].Add(&some[k])
				}
				empty <- some[:0]
			}
		})
	}
	err := deal(ctx, src, full, empty)
	for _, c := range full {
		close(c)
	}
	wg.Wait()
	var result *Result
	for _, p := range players {
		if r := p.Finish(); result == nil {
			result = r
		} else {
			result.Merge(r)
		}
	}
	return result, err
}

// deal sends all samples of a machine to the same worker.
func deal(ctx context.Context, src Source, full []chan []sample.Sample, empty chan []sample.Sample) error {
	open := make([][]sample.Sample, len(full))
	for i := range open {
		open[i] = <-empty
	}
	defer func() {
		for i, some := range open {
			full[i] <- some
		}
	}()
	last, to := "", worker("", len(full))
	for {
		some, err := src.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for k := range some {
			if some[k].Machine != last {
				last = some[k].Machine
				to = worker(last, len(full))
			}
			if open[to] = append(open[to], some[k]); len(open[to]) == batch {
				full[to] <- open[to]
				open[to] = <-empty
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// worker returns the index of a machine's worker: the same in every run (FNV-1a).
func worker(machine string, workers int) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, machine)
	return int(h.Sum32() % uint32(workers))
}
