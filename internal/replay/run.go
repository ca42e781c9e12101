package replay

import (
	"context"
	"io"
	"sync"

	"github.com/quell-dev/quell/internal/sample"
)

// Source gives samples, as many at a time as suits it, possibly none, and io.EOF
// at the end. They are valid until the next call. *recording.Recording is one.
type Source interface {
	Next() ([]sample.Sample, error)
}

const (
	batch = 1024
	// queue is how many batches wait for a worker: machines that the source
	// gives long stretches of should not make the others wait.
	queue = 4
)

// Run plays all samples of a source on so many goroutines, each with machines
// of its own; the result does not depend on how many. It ends early with ctx.
func Run(ctx context.Context, src Source, o Options, workers int) (*Result, error) {
	workers = max(workers, 1)
	players := make([]*Player, workers)
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

// deal gives each machine's samples to one worker.
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

// worker is whose a machine is: the same in every run (FNV-1a).
func worker(machine string, workers int) int {
	h := uint32(2166136261)
	for i := range len(machine) {
		h = (h ^ uint32(machine[i])) * 16777619
	}
	return int(h % uint32(workers))
}
