package sim

import "runtime"

// Order describes one case to play.
type Order struct {
	Scenario *Scenario
	Seed     uint64
}

// RunAll plays cases, as many in parallel as there are CPUs (workers; 0: all), and passes
// each to done in the order of orders, so that results do not depend on which case ends
// first. done is called from the caller's goroutine.
func (p *Simulator) RunAll(orders []Order, setup Setup, workers int, done func(Case)) {
	if setup.Record != nil { // recorded samples need a fixed order too
		for _, o := range orders {
			done(p.Run(o.Scenario, o.Seed, setup))
		}
		return
	}
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	const chunk = 32 // maximum number of cases that wait for an earlier one, per worker
	queue := make(chan chan Case, chunk*workers)
	go func() {
		defer close(queue)
		busy := make(chan struct{}, workers)
		for _, o := range orders {
			played := make(chan Case, 1)
			busy <- struct{}{}
			queue <- played
			go func() {
				c := p.Run(o.Scenario, o.Seed, setup)
				<-busy
				played <- c
			}()
		}
	}()
	for played := range queue {
		done(<-played)
	}
}
