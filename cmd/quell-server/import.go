package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
)

func importCommand(f *flags) *cobra.Command {
	return &cobra.Command{Use: "import FILE…", Short: "import the samples of traces into the store, each once", Args: cobra.MinimumNArgs(1),
		Long: `import adds traces (CSV, docs/trace-format.md) to the store while no server runs. A file is
identified by its contents: one that was imported before is skipped, and an import that was
interrupted continues. A trace that has grown since is another file, all of which is imported
again; so is what an agent has sent to this server too.`,
		Example: "  quell-server import samples-2026-11.csv",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			c, err := f.Load()
			if err != nil {
				return err
			}
			s, err := openStore(cmd.Context(), c)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			for _, name := range args {
				if err := importTrace(cmd.OutOrStdout(), s, c, name); err != nil {
					return err
				}
			}
			for {
				if more, err := s.Compact(); err != nil || !more {
					return err
				}
			}
		}}
}

// importBatch is the number of a trace's samples in one batch.
const importBatch = 10_000

func importTrace(out io.Writer, s *store.Store, c *config.Server, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return daemon.Usage(fmt.Errorf("import: %w", err))
	}
	defer file.Close() // it is only read
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return fmt.Errorf("import %s: %w", name, err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("import %s: %w", name, err)
	}
	r, err := trace.NewReader(file)
	if err != nil {
		return daemon.Usage(fmt.Errorf("import %s: %w", name, err))
	}
	b := store.Batch{Source: store.Source{Stream: "import", Machine: hex.EncodeToString(sum.Sum(nil))[:16]}}
	before := s.Stats()
	for {
		b.N++
		b.Samples = b.Samples[:0]
		for len(b.Samples) < importBatch {
			var one sample.Sample
			if err = r.Read(&one); err != nil {
				break
			}
			b.Samples = append(b.Samples, one)
		}
		if err != nil && err != io.EOF {
			return err
		}
		if len(b.Samples) > 0 {
			s.Add(&b)
		}
		if s.Pending() >= c.Store.MaxPending || err == io.EOF {
			if bad := s.Flush(); bad != nil {
				return bad
			}
		}
		if err == io.EOF {
			break
		}
	}
	after, report := s.Stats(), r.Report()
	_, err = fmt.Fprintf(out, "%s: %d samples, %d of them imported before, %d too old or in the future, %d bad rows\n", name, report.Rows,
		uint64(report.Rows)-(after.Samples-before.Samples)-(after.Rejected-before.Rejected), after.Rejected-before.Rejected, report.Bad)
	return err
}
