package main

import (
	"os"
	"path/filepath"

	"github.com/quell-dev/quell/internal/cluster/server"
	"github.com/quell-dev/quell/internal/cluster/store/digest"
	"github.com/quell-dev/quell/internal/cluster/store/spark"
)

// setSpecEngine sets the component that computes the server's specs.
func setSpecEngine(p *server.Options) {
	c := p.Config
	if c.Specs.Engine == "" {
		p.Learner = &digest.Learner{Dir: filepath.Join(c.StateDir, "digests"), Threads: c.Query.Threads}
	} else {
		p.Learner = &spark.Learner{Address: c.Specs.Engine, Token: os.Getenv("QUELL_SPARK_TOKEN")}
	}
}
