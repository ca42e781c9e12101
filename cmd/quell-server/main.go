// quell-server is the cluster's side: it stores what agents measure and detect, learns
// specs from all of it, and answers users and tools.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	// Mozilla's CA certificates, where the system has none, as in the image.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/cluster/server"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
)

// version is set by the linker.
var version = "devel"

type flags struct {
	*daemon.Config[config.Server]
}

func main() { os.Exit(daemon.Main(context.Background(), command(), os.Stderr)) }

// childCommand is the hidden command of a query's process.
const childCommand = "query-child"

func args(n int, names string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return daemon.Usage(fmt.Errorf("%d arguments: want %s", len(args), names))
		}
		return nil
	}
}

func command() *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use:   "quell-server",
		Short: "store what a cluster's agents measure, learn specs, answer queries",
		Long: `quell-server receives the samples and incidents of quell-agents and stores them as Parquet.
It learns the normal cost of each job on each CPU type and sends it to the agents. Its HTTP
API (docs/server.md) answers requests, with SQL over all stored data (docs/sql.md).

Keys of the configuration can be set in the file, in the environment
(store.flush as QUELL_SERVER_STORE_FLUSH) and with --set; later sources win.`,
		Example: `  quell-server --set state_dir=/var/lib/quell-server
  quell-server check --config server.yaml    # names every problem, changes nothing
  quell-server config > server.yaml          # every key with its default and range
  quell-server credentials agent host-17     # for this machine's agent
  quell-server revoke agent host-17          # disconnects it
  quell-server keys rotate                   # replaces the key that signs credentials
  quell-server token alice operator          # a token for the API
  quell-server import trace.csv              # adds samples of a trace, once
  quell-server load --self --machines 1000   # the capacity of a server on this machine`,
		Args: args(0, "none"), Version: version,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.LoadToRun()
			if err != nil {
				return err
			}
			return run(cmd.Context(), c)
		},
	}
	f.Config = daemon.AddConfig(root, config.LoadServer, config.ServerReference, "server.yaml", "store.flush=1s")
	root.AddCommand(
		tokenCommand(), credentialsCommand(&f), revokeCommand(&f), keysCommand(&f), trustCommand(&f), segmentsCommand(&f), importCommand(&f), loadCommand(&f),
		&cobra.Command{Use: childCommand + " DIR", Hidden: true, Args: args(1, "DIR"),
			RunE: func(cmd *cobra.Command, args []string) error {
				return duck.Child(args[0], cmd.InOrStdin(), cmd.OutOrStdout())
			}},
	)
	return root
}

func tokenCommand() *cobra.Command {
	var expires string
	cmd := &cobra.Command{Use: "token NAME viewer|operator", Short: "make a token for the API", Args: args(2, "NAME and viewer or operator"),
		Long: `token prints a new token, for its user, and a line for the server's tokens_file, which makes
the server accept it. The line has only the token's hash: the token cannot be read from it.`,
		Example: "  quell-server token alice operator --expires 2027-01-31",
		RunE: func(cmd *cobra.Command, args []string) error {
			secret, line, err := server.NewToken(args[0], server.Scope(args[1]), expires)
			if err != nil {
				return daemon.Usage(err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "token, shown only now:\n  %s\nline for tokens_file:\n  %s\n", secret, line)
			return err
		}}
	cmd.Flags().StringVar(&expires, "expires", "", "last day on which it is valid, e.g. 2027-01-31; empty: forever")
	return cmd
}

func keysDir(c *config.Server) string { return filepath.Join(c.StateDir, "keys") }

func storeDir(c *config.Server) string { return filepath.Join(c.StateDir, "store") }

// files returns a store's snapshot, and the function that names a table's files in it. Without a folder it is the
// configured store: that in the bucket if there is one, where its folder only has copies.
func (f *flags) files(ctx context.Context, dir string) (*store.Snapshot, func(*store.Snapshot, string) []string, error) {
	if dir == "" {
		c, err := f.Load()
		if err != nil {
			return nil, nil, err
		}
		if c.Store.S3.Bucket != "" {
			b, err := openBucket(ctx, &c.Store.S3)
			if err != nil {
				return nil, nil, err
			}
			sn, err := store.ReadBucket(ctx, b, storeDir(c))
			return sn, (*store.Snapshot).URLs, err
		}
		dir = storeDir(c)
	}
	sn, err := store.Read(dir)
	return sn, (*store.Snapshot).Files, err
}

func segmentsCommand(f *flags) *cobra.Command {
	dir := ""
	cmd := &cobra.Command{Use: "segments [TABLE]", Short: "print where the store's current files are, one per line", Args: cobra.MaximumNArgs(1),
		Example: "  quell-server segments samples\n  duckdb -c \"SELECT count(*) FROM read_parquet([$(quell-server segments samples | sed \"s/.*/'&'/\" | paste -sd,)])\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			tables := store.Tables()
			if len(args) == 1 {
				if !slices.Contains(tables, args[0]) {
					return daemon.Usage(fmt.Errorf("table %q: want one of %v", args[0], tables))
				}
				tables = args
			}
			sn, files, err := f.files(cmd.Context(), dir)
			if err != nil {
				return err
			}
			for _, t := range tables {
				for _, file := range files(sn, t) {
					if _, err := fmt.Fprintln(cmd.OutOrStdout(), file); err != nil {
						return err
					}
				}
			}
			return nil
		}}
	cmd.Flags().StringVar(&dir, "store", "", "the store's folder; empty: from the configuration")
	return cmd
}
