package sim

import (
	"runtime"
	"sync"
)

// Order asks for one case.
type Order struct {
	Scenario *Scenario
	Seed     uint64
}

// Fleet plays cases, as many at once as there are CPUs (workers; 0: all), and
// hands each over in the order of the orders, so that what is made of them does
// not depend on who was done first. done is called from one goroutine at a time.
func (p *Player) Fleet(orders []Order, setup Setup, workers int, done func(Case)) {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	if setup.Record != nil {
		workers = 1 // what is recorded has an order too
	}
	const chunk = 32 // how far the first may be ahead of the last, per worker
	var (
		mu     sync.Mutex
		ready  = sync.NewCond(&mu)
		next   int // order to be taken
		handed int // cases handed over
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
				c := p.Play(orders[n].Scenario, orders[n].Seed, setup)
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
