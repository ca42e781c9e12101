package sim

import (
	"runtime"
	"sync"
)

// Order describes one case to play.
type Order struct {
	Scenario *Scenario
	Seed     uint64
}

// RunAll plays cases, as many in parallel as there are CPUs (workers; 0: all), and passes
// each to done in the order of orders, so that results do not depend on which case ends
// first. done is called from one goroutine at a time.
func (p *Simulator) RunAll(orders []Order, setup Setup, workers int, done func(Case)) {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	if setup.Record != nil {
		workers = 1 // recorded samples need a fixed order too
	}
	const chunk = 32 // maximum distance between the first and the last case in work, per worker
	var (
		mu     sync.Mutex
		ready  = sync.NewCond(&mu)
		next   int // next order to start
		handed int // number of cases passed to done
		kept   = map[int]Case{}
		wait   sync.WaitGroup
	)
	for range workers {
		wait.Go(func() {
			for {
				mu.Lock()
				for next < len(orders) && next >= handed+chunk*workers {
					ready.Wait()
				}
				n := next
				next++
				mu.Unlock()
				if n >= len(orders) {
					return
				}
				c := p.Run(orders[n].Scenario, orders[n].Seed, setup)
				mu.Lock()
				kept[n] = c
				for {
					c, ok := kept[handed]
					if !ok {
						break
					}
					delete(kept, handed)
					handed++
					done(c)
				}
				ready.Broadcast()
				mu.Unlock()
			}
		})
	}
	wait.Wait()
}
