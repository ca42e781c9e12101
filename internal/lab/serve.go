package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/lab/study"
)

// answering is an environment that can report when a server in it accepts connections
// on a port.
type answering interface {
	Answers(ctx context.Context, port int) error
}

// patienceToServe is the time limit for a server to answer: a server of files takes
// milliseconds, on a busy machine some seconds; in an emulated guest, which makes its own
// certificate, half a minute.
const patienceToServe = 2 * time.Minute

// webPort is the port on which all of the lab's web servers listen.
const webPort = 80

// portOf is the port on which a workload accepts connections once it serves; 0 if it is
// not a server.
func portOf(w *study.Workload) int {
	switch w.Builtin {
	case study.HTTPServer:
		return webPort
	case study.UDPReceive, study.UDPEcho:
		return study.UDPPort
	}
	return 0
}

// serve starts web servers before the barrier and waits until they answer; otherwise
// the clients would measure the server's start-up time. Datagram servers listen before
// they are released from the barrier; serve waits for them too.
func (s *execution) serve(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patienceToServe)
	defer cancel()
	var servers []*partRun
	for _, a := range s.actors {
		if !a.busy() || portOf(&a.part.Workload) == 0 {
			continue
		}
		servers = append(servers, a)
		if a.part.Workload.Builtin != study.HTTPServer {
			continue
		}
		at, _, err := a.process.Begin()
		if err != nil {
			return fmt.Errorf("begin %s: %w", a.part.Name(), err)
		}
		a.began = at
	}
	for _, a := range servers {
		e, ok := a.env.(answering)
		if !ok {
			continue
		}
		living, ended := context.WithCancel(ctx)
		go func() {
			defer ended()
			select {
			case <-a.process.Done():
			case <-living.Done():
			}
		}()
		err := e.Answers(living, portOf(&a.part.Workload))
		ended()
		if err != nil {
			return fmt.Errorf("wait until %s serves: %w", a.part.Name(), err)
		}
	}
	return nil
}
