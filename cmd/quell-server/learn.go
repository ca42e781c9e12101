package main

import (
	"os"
	"path/filepath"

	"github.com/quell-dev/quell/internal/server"
	"github.com/quell-dev/quell/internal/store/digest"
	"github.com/quell-dev/quell/internal/store/spark"
)

// learns sets what makes the server's specs.
func learns(p *server.Parts) {
	c := p.Config
	switch c.Specs.Engine {
	case "":
		p.Learner = &digest.Learner{Dir: filepath.Join(c.StateDir, "digests"), Threads: c.Query.Threads}
	case "duckdb": // what answers queries
	default:
		p.Engine = &spark.Engine{Address: c.Specs.Engine, Token: os.Getenv("QUELL_SPARK_TOKEN")}
	}
}
