package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/child"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/load"
	"github.com/quell-dev/quell/internal/core/sample"
)

// loadFlags are the flags of load.
type loadFlags struct {
	play      load.Options
	api       string
	tokenFile string
	self      bool
	json      bool
}

func loadCommand(f *flags) *cobra.Command {
	o := loadFlags{play: load.Options{Every: 5 * time.Second, Finish: time.Minute, Settle: 2 * time.Minute}}
	cmd := &cobra.Command{Use: "load", Short: "simulate many machines against a server, and measure what it handled", Args: args(0, "none"),
		Long: `load simulates machines. Each has its own connection and credentials, makes a batch each period, and
sends as an agent does: what it has made since the last acknowledgement, as much at a time as the
server has room for. It prints the samples acknowledged and committed per second, the time from
when a batch was due to its acknowledgement, and the server's CPU, memory and disk. It is an error
if an acknowledged sample is not committed in the end.

If the machines make more than the server handles, the rest waits on their side, as in agents'
spools. With --drain they go on to send it afterwards.

It signs the machines' credentials with the keys in state_dir, so it runs where the server does, as
the same user. Its samples are stored like any others, of the machines load-00000, load-00001, …
With --self it starts a separate server in a temporary folder, and removes it afterwards.

If it is interrupted, it ends early and prints the results so far.`,
		Example: `  quell-server load --self --machines 6000 --for 5m       # 300,000 samples/s: make scale
  quell-server load --config server.yaml --machines 100 --tasks 200 --period 10s
  quell-server load --self --machines 6000 --tasks 100 --for 10m --drain 20m    # make scale-overload
  quell-server load --self --json | jq .server.per_sample`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := daemon.UntilStopped(cmd.Context())
			defer stop()
			return o.run(ctx, cmd, f)
		}}
	flags := cmd.Flags()
	flags.IntVar(&o.play.Machines, "machines", 100, "number of machines")
	flags.IntVar(&o.play.Tasks, "tasks", 50, "tasks per machine; a batch has one sample of each")
	o.play.Period = time.Second
	flags.Var((*sample.Duration)(&o.play.Period), "period", "time between two batches of a machine")
	o.play.For = time.Minute
	flags.Var((*sample.Duration)(&o.play.For), "for", "how long to send")
	flags.Var((*sample.Duration)(&o.play.Drain), "drain", "how long machines then go on to send what still waits")
	flags.Uint64Var(&o.play.Seed, "seed", 1, "random seed of tasks' names and costs")
	flags.StringVar(&o.play.URL, "url", "", "address of the bus, e.g. tls://bus.example.org:4222; empty: from the configuration")
	flags.StringVar(&o.api, "api", "", "address of the server's API, e.g. https://host:9781, for its metrics; empty: from the configuration")
	flags.StringVar(&o.tokenFile, "token-file", "", "file with a viewer's token for the API")
	flags.BoolVar(&o.self, "self", false, "start a separate server in a temporary folder")
	flags.BoolVar(&o.json, "json", false, "print the result as JSON")
	return cmd
}

// check returns an error in the flags.
func (o *loadFlags) check() error {
	p := &o.play
	switch {
	case p.Machines < 1 || p.Machines > 100_000:
		return fmt.Errorf("--machines %d: want 1 to 100000", p.Machines)
	case p.Tasks < 1 || p.Tasks > 2000:
		return fmt.Errorf("--tasks %d: want 1 to 2000, the most that an agent's batch has", p.Tasks)
	case p.Period < 10*time.Millisecond:
		return fmt.Errorf("--period %s: want at least 10ms", p.Period)
	case p.For < time.Second:
		return fmt.Errorf("--for %s: want at least 1s", p.For)
	case p.Drain < 0:
		return fmt.Errorf("--drain %s: want at least 0s", p.Drain)
	}
	need := p.Machines + 100
	if o.self { // it has the same limit, and keeps some for others than machines (agentConnections)
		need = p.Machines + reserved + config.DefaultServer().Limits.Connections
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur < uint64(need) {
		return fmt.Errorf("--machines %d: this process may have %d open files: ulimit -n %d", p.Machines, files.Cur, need)
	}
	return nil
}

func (o *loadFlags) run(ctx context.Context, cmd *cobra.Command, f *flags) (err error) {
	if err := o.check(); err != nil {
		return daemon.Usage(err)
	}
	dir, err := os.MkdirTemp("", "quell-load-")
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.self {
		// Half of the processors suffice; fewer mean fewer migrations of goroutines.
		runtime.GOMAXPROCS(max(1, runtime.NumCPU()/2))
		server, own, err := o.serve(ctx, f, dir)
		if err != nil {
			return err
		}
		defer func() { _ = server.Stop(startTime) }() // how it ends does not change the result
		f = own
	}
	c, err := f.Load()
	if err != nil {
		return err
	}
	if o.play.Credentials, err = signer(c, dir, o.play.For+o.play.Drain); err != nil {
		return err
	}
	if err := o.reach(c); err != nil {
		return err
	}
	o.play.Progress = func(p load.Progress) { _ = p.Text(cmd.ErrOrStderr()) } // informative only
	result, err := load.Run(ctx, o.play)
	if result == nil {
		return err
	}
	if o.json {
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		return errors.Join(err, e.Encode(result))
	}
	return errors.Join(err, result.Text(cmd.OutOrStdout()))
}

// reach sets the addresses of the bus and the API.
func (o *loadFlags) reach(c *config.Server) error {
	o.play.URL = cmp.Or(o.play.URL, c.Bus.URL, "nats://"+c.Bus.Listen)
	if o.api == "" {
		scheme := "http://"
		if c.TLS.Cert != "" {
			scheme = "https://"
		}
		o.api = scheme + c.Listen
	}
	token := ""
	if o.tokenFile != "" {
		text, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return daemon.Usage(fmt.Errorf("load: %w", err))
		}
		token = strings.TrimSpace(string(text))
	}
	o.play.Meter = load.MeterURL(&http.Client{Timeout: 5 * time.Second}, strings.TrimSuffix(o.api, "/")+"/metrics", token)
	return nil
}

// signer makes machines' credentials, valid for a little longer than the run.
func signer(c *config.Server, dir string, playFor time.Duration) (func(string) (string, error), error) {
	a, err := authority.Load(keysDir(c))
	if err != nil {
		return nil, err
	}
	return func(machine string) (string, error) {
		text, err := a.Issue(authority.Agent, machine, playFor+time.Hour)
		if err != nil {
			return "", err
		}
		path := filepath.Join(dir, machine+".creds")
		return path, os.WriteFile(path, text, 0o600)
	}, nil
}

// startTime is how long a server may take to be ready, or to exit.
const startTime = time.Minute

// serve starts a server below dir and returns when it is ready, with its flags.
func (o *loadFlags) serve(ctx context.Context, f *flags, dir string) (*child.Process, *flags, error) {
	api, err := child.FreeAddress()
	if err != nil {
		return nil, nil, fmt.Errorf("load: %w", err)
	}
	nats, err := child.FreeAddress()
	if err != nil {
		return nil, nil, fmt.Errorf("load: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	own := &flags{Config: f.Under("state_dir="+filepath.Join(dir, "state"), "listen="+api, "bus.listen="+nats, "log_level=warn")}
	// It is stopped after the final results were read from it.
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	s, err := child.Start(exec.Command(self, own.Args()...), child.Options{Name: "the server"})
	if err != nil {
		return nil, nil, fmt.Errorf("load: %w", err)
	}
	err = s.Until(ctx, startTime, "be ready", func() (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+api+"/readyz", nil)
		if err != nil {
			return false, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false, nil
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK, nil
	})
	if err != nil {
		_ = s.Stop(startTime) // err is the reason
		return nil, nil, fmt.Errorf("load: %w; its log: %s", err, s.Tail())
	}
	return s, own, nil
}
