// quell-server is the cluster's side: it keeps what agents measured and found,
// learns specs from all of it, and answers people and tools.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/bus/authority"
	"github.com/quell-dev/quell/internal/config"
	"github.com/quell-dev/quell/internal/server"
	"github.com/quell-dev/quell/internal/store"
	"github.com/quell-dev/quell/internal/store/duck"
)

// version is stamped by the linker.
var version = "devel"

// Exit codes: 1 something failed while running, 2 the configuration, the
// environment or the command line is not right and nothing was touched.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError marks what exits with exitUsage.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

type flags struct {
	file string
	set  []string
}

func (f *flags) load() (*config.Server, error) {
	c, err := config.LoadServer(f.file, os.Environ(), f.set)
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

func main() {
	err := command().Execute()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "quell-server:", err)
	if errors.Is(err, store.ErrLocked) {
		fmt.Fprintln(os.Stderr, "what to do: stop the quell-server that uses this state_dir, or set another")
	}
	var usage usageError
	if errors.As(err, &usage) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}

// childCommand is the hidden command that a query's process is started with.
const childCommand = "query-child"

func args(n int, names string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("%d arguments: want %s", len(args), names)}
		}
		return nil
	}
}

func command() *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use:   "quell-server",
		Short: "keep what a cluster's agents measure, learn what is normal, answer by SQL",
		Long: `quell-server takes the samples and incidents of quell-agents, keeps them as Parquet,
learns for each job and CPU type what it normally costs, tells the agents, and answers
people: an HTTP API (docs/server.md) with SQL over everything (docs/sql.md).

Keys of the configuration can be set in the file, in the environment
(store.flush as QUELL_SERVER_STORE_FLUSH) and with --set; the later counts.`,
		Example: `  quell-server --set state_dir=/var/lib/quell-server
  quell-server check --config server.yaml    # names every problem, changes nothing
  quell-server config > server.yaml          # every key with its default and range
  quell-server credentials agent host-17     # for that machine's agent
  quell-server token alice operator          # a token for the API
  quell-server import trace.csv              # samples of a trace, once`,
		Args: args(0, "none"), SilenceUsage: true, SilenceErrors: true, Version: version,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.load()
			if err != nil {
				return err
			}
			return run(cmd.Context(), c)
		},
	}
	root.PersistentFlags().StringVar(&f.file, "config", "", "configuration file (YAML)")
	root.PersistentFlags().StringArrayVar(&f.set, "set", nil, "set one key, e.g. store.flush=1s; may be repeated")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		&cobra.Command{Use: "check", Short: "check the configuration and name every problem", Args: args(0, "none"),
			Example: "  quell-server check --config server.yaml",
			RunE: func(cmd *cobra.Command, _ []string) error {
				if _, err := f.load(); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), "the configuration is right")
				return nil
			}},
		&cobra.Command{Use: "config", Short: "print every key with its default, help and range", Args: args(0, "none"),
			Example: "  quell-server config > /etc/quell/server.yaml",
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := fmt.Fprint(cmd.OutOrStdout(), config.ServerReference())
				return err
			}},
		tokenCommand(), credentialsCommand(&f), segmentsCommand(&f), importCommand(&f),
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
		Long: `token prints a new token, for who is to use it, and the line that lets it in, for the
server's tokens_file. The file holds the token's hash: nobody can read the token there.`,
		Example: "  quell-server token alice operator --expires 2027-01-31",
		RunE: func(cmd *cobra.Command, args []string) error {
			secret, line, err := server.NewToken(args[0], server.Scope(args[1]), expires)
			if err != nil {
				return usageError{err}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "token, shown only now:\n  %s\nline for tokens_file:\n  %s\n", secret, line)
			return err
		}}
	cmd.Flags().StringVar(&expires, "expires", "", "last day on which it is good, e.g. 2027-01-31; empty: for ever")
	return cmd
}

func keysDir(c *config.Server) string { return filepath.Join(c.StateDir, "keys") }

func credentialsCommand(f *flags) *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{Use: "credentials agent|viewer|operator NAME", Short: "make credentials for the bus", Args: args(2, "agent, viewer or operator, and a NAME"),
		Long: `credentials prints credentials in NATS's format: of an agent those with which it can
publish as the machine NAME and no other. They are signed by keys in the server's state_dir.`,
		Example: "  quell-server credentials agent host-17 > host-17.creds",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.load()
			if err != nil {
				return err
			}
			if !slices.Contains([]string{"agent", "viewer", "operator"}, args[0]) {
				return usageError{fmt.Errorf("%q: want agent, viewer or operator", args[0])}
			}
			a, err := authority.Load(keysDir(c))
			if err != nil {
				return err
			}
			text, err := a.Issue(authority.Role(args[0]), args[1], ttl)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		}}
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long they are good, e.g. 2160h; 0: for ever")
	return cmd
}

func storeDir(c *config.Server) string { return filepath.Join(c.StateDir, "store") }

func segmentsCommand(f *flags) *cobra.Command {
	dir := ""
	cmd := &cobra.Command{Use: "segments [TABLE]", Short: "print the store's files that count, a path on each line", Args: cobra.MaximumNArgs(1),
		Example: "  quell-server segments samples\n  duckdb -c \"SELECT count(*) FROM read_parquet([$(quell-server segments samples | sed \"s/.*/'&'/\" | paste -sd,)])\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" {
				c, err := f.load()
				if err != nil {
					return err
				}
				dir = storeDir(c)
			}
			tables := store.Tables()
			if len(args) == 1 {
				if !slices.Contains(tables, args[0]) {
					return usageError{fmt.Errorf("table %q: want one of %v", args[0], tables)}
				}
				tables = args
			}
			sn, err := store.Read(dir)
			if err != nil {
				return err
			}
			for _, t := range tables {
				for _, file := range sn.Files(t) {
					if _, err := fmt.Fprintln(cmd.OutOrStdout(), file); err != nil {
						return err
					}
				}
			}
			return nil
		}}
	cmd.Flags().StringVar(&dir, "store", "", "the store's folder; empty: the configuration's")
	return cmd
}
