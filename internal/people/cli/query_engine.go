package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/spark"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// engineFlags select an engine other than quell-server for a query.
type engineFlags struct {
	engine, store string
	rows          int
}

func (f *engineFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.engine, "engine", "", "run the query on Apache Spark at sc://HOST:PORT, by Spark Connect, with your own permissions there ($QUELL_SPARK_TOKEN)")
	cmd.Flags().StringVar(&f.store, "store", "", "with --engine: the store's folder; Spark's executors need it under the same path")
	cmd.Flags().IntVar(&f.rows, "rows", 100_000, "with --engine: maximum number of rows")
}

// query runs a query on Spark over the store's current files.
func (f *engineFlags) query(ctx context.Context, a *commands, in *cluster.Query) (answer cluster.Answer, err error) {
	if in.SQL == "" || f.store == "" || f.rows < 1 {
		return answer, errors.New("--engine: want SQL, --store DIR and at least one of --rows")
	}
	var from, to sample.Millis
	for name, b := range map[string]struct {
		text string
		at   *sample.Millis
	}{"since": {in.Since, &from}, "until": {in.Until, &to}} {
		at, ok := sample.ParseTime(b.text, sample.At(a.Now()))
		if b.text != "" && !ok {
			return answer, app.Usage(fmt.Errorf("--%s: %q", name, b.text), "give a time such as 2026-11-21T13:00:00Z, a day, or how long ago, such as 24h")
		}
		*b.at = at
	}
	if err := spark.Check(f.engine); err != nil {
		return answer, app.Usage(fmt.Errorf("--engine: %w", err), "name Spark's Connect server")
	}
	sn, err := store.Read(f.store)
	if err != nil {
		return answer, app.Usage(err, "name quell-server's folder STATE_DIR/store with --store")
	}
	s, err := spark.Open(ctx, f.engine, a.Getenv("QUELL_SPARK_TOKEN"))
	if err != nil {
		return answer, app.Usage(err, "start Spark's Connect server, or name it with --engine")
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	sn.Segments = slices.DeleteFunc(sn.Segments, func(seg store.Segment) bool {
		return seg.Table() == store.Samples && (seg.To < from || to > 0 && seg.From > to)
	})
	if err := s.Tables(ctx, spark.Files(sn), from, to); err != nil {
		return answer, err
	}
	got, err := s.Query(ctx, in.SQL, f.rows)
	if err != nil {
		return answer, err
	}
	text, err := json.Marshal(got)
	if err == nil {
		err = json.Unmarshal(text, &answer) // it has the same JSON form as the server's
	}
	return answer, err
}
