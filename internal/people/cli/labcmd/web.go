package labcmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/httpload"
	"github.com/quell-dev/quell/internal/lab/network"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/web"
	"github.com/quell-dev/quell/internal/lab/workload"
)

func serveSite(ctx context.Context, dir string) error {
	plain, err := net.Listen("tcp", ":80")
	if err != nil {
		return err
	}
	secure, err := net.Listen("tcp", ":443")
	if err != nil {
		return errors.Join(err, plain.Close())
	}
	return web.Serve(ctx, dir, plain, secure)
}

// becomeServer makes a site in an environment that does not see the study's, and executes a
// server of the given kind for it.
func becomeServer(kind string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "quell-site-")
	if err != nil {
		return err
	}
	s, err := web.Open(dir)
	if err != nil {
		return err
	}
	argv, err := s.Command(kind, "server", []string{self, "lab-serve"})
	if err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", argv[0], unix.Exec(argv[0], argv, os.Environ()))
}

// parseAsk parses the flags of the built-in workload http-client; the lab sets host, rate
// and the times.
func parseAsk(args []string) (c httpload.Options, err error) {
	fs := flag.NewFlagSet(study.HTTPClient, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	file := fs.String("file", "1k", "")
	host := fs.String("host", "127.0.0.1", "")
	tls := fs.Bool("tls", false, "")
	fs.BoolVar(&c.Fresh, "fresh", false, "")
	fs.IntVar(&c.Connections, "connections", 32, "")
	fs.Float64Var(&c.Rate, "rate", 0, "")
	fs.DurationVar(&c.Warmup, "warmup", 0, "")
	fs.DurationVar(&c.Duration, "time", time.Second, "")
	fs.DurationVar(&c.Timeout, "timeout", time.Second, "")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	if fs.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if !slices.ContainsFunc(web.Sizes(), func(n int) bool { return *file == fmt.Sprintf("%dk", n) }) {
		return c, fmt.Errorf("-file=%s: want one of %v, with a k", *file, web.Sizes())
	}
	if c.Connections < 1 || c.Timeout <= 0 {
		return c, errors.New("want at least one connection, and a timeout")
	}
	scheme := "http"
	if *tls {
		scheme = "https"
	}
	c.URL, c.Insecure = scheme+"://"+*host+"/"+*file, true
	return c, nil
}

// parseServer parses the flags of the built-in workload http-server.
func parseServer(args []string) (kind string, err error) {
	fs := flag.NewFlagSet(study.HTTPServer, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&kind, "server", web.Nginx, "")
	if err := fs.Parse(args); err != nil {
		return "", err
	}
	if fs.NArg() > 0 || !slices.Contains(web.Kinds(), kind) {
		return "", fmt.Errorf("-server=%s %s: want one of %s", kind, strings.Join(fs.Args(), " "), strings.Join(web.Kinds(), ", "))
	}
	return kind, nil
}

// builtins returns the kernels and the other built-in workloads.
func builtins() []string {
	return append(workload.KernelNames(), study.HTTPServer, study.HTTPClient)
}

// checkOptions validates a built-in workload's flags.
func checkOptions(builtin string, flags []string) error {
	var err error
	switch builtin {
	case study.HTTPServer:
		_, err = parseServer(flags)
	case study.HTTPClient:
		_, err = parseAsk(flags)
	default:
		_, err = workload.ParseKernel(append([]string{builtin}, flags...))
	}
	return err
}

// run is lab.Run for studies with networks and web servers. If a role's rate is a share
// of its base case, base cases run first, within the same budget.
func (l *labMachine) run(ctx context.Context, o lab.Options) (sum lab.Summary, err error) {
	nets := network.With(o.Maker, o.Study.Networks, []string{l.self, "lab-net"})
	defer func() { err = errors.Join(err, nets.Close()) }()
	o.Maker, o.Command = nets, l.far.addressed(l.webCommand(o))
	if !needsBaseRates(o.Study) {
		return lab.Run(ctx, o)
	}
	o.Began = time.Now()
	only := o.Only
	of := func(base bool) func(*study.Cell) bool {
		return func(c *study.Cell) bool { return analyse.IsBase(c) == base && (only == nil || only(c)) }
	}
	o.Only = of(true)
	first, err := lab.Run(ctx, o)
	if err != nil {
		return first, err
	}
	o.Only = of(false)
	sum, err = lab.Run(ctx, o)
	sum.After(first)
	return sum, err
}

// needsBaseRates reports whether any role's rate is a share of a base case.
func needsBaseRates(s *study.Study) bool {
	return slices.ContainsFunc(s.Roles, func(r study.Role) bool { return r.Load.Control == study.Requests && r.Load.Target != study.MaxRate })
}

// webCommand is lab.Options.Command for web servers and their clients; the options have that of
// all other workloads.
func (l *labMachine) webCommand(o lab.Options) partCommand {
	site := sync.OnceValues(func() (web.Site, error) { return web.Open(o.Folder.Path("web")) })
	return func(c *study.Cell, p *study.Part) (lab.Job, error) {
		w := &p.Workload
		flags := strings.Fields(w.Options)
		switch w.Builtin {
		default:
			return o.Command(c, p)
		case study.HTTPServer:
			kind, err := parseServer(flags)
			if err == nil {
				err = refuseServer(o.Study, p, kind)
			}
			if err != nil {
				return lab.Job{}, err
			}
			if network.Within(p) {
				return lab.Job{Argv: []string{l.self, "lab-site", kind}, Env: w.Env}, nil
			}
			s, err := site()
			if err != nil {
				return lab.Job{}, err
			}
			argv, err := s.Command(kind, strings.ReplaceAll(p.Name(), "/", "."), []string{l.self, "lab-serve"})
			if errors.Is(err, web.ErrNoServer) {
				return lab.Job{}, &lab.LackError{What: err.Error(), Remedy: "or use another: options: -server=" + web.Go}
			}
			return lab.Job{Argv: argv, Env: w.Env}, err
		case study.HTTPClient:
			if w.Time == 0 {
				return lab.Job{}, fmt.Errorf("workload %s: want time, the length of the measurement", w.Name)
			}
			rate, err := rateOf(o.Folder, &series{o.Env, o.Stamp}, o.Study.Cells(), c, p)
			if err != nil {
				return lab.Job{}, err
			}
			argv := []string{l.self, "lab-ask", "-host=" + p.Asks, fmt.Sprintf("-rate=%g", rate), "-warmup=" + w.Warmup.For.String(), "-time=" + w.Time.String()}
			return lab.Job{Argv: append(argv, flags...), Env: w.Env, WaitsForStart: true}, nil
		}
	}
}

// refuseServer returns the *lab.LackError with which a web server of a kind cannot run where a
// part is: its files are on the lab's machine, and Xen's guests have nothing but quell.
func refuseServer(s *study.Study, p *study.Part, kind string) error {
	switch program := web.Program(kind); {
	case !s.Here(p):
		return &lab.LackError{What: "the built-in web server runs on the lab's machine only, not on host " + p.Host, Remedy: "use a command with serves: PORT there"}
	case p.Environment.Driver == study.Xen && program != "":
		return &lab.LackError{What: "no web server " + program + " in a guest of Xen: it has only quell's own", Remedy: "options: -server=" + web.Go}
	}
	return nil
}

// refuseRate returns the *lab.LackError with which no rate can be found for a cell's client: the
// study has no base case that its rate is a share of.
func refuseRate(plan []study.Planned, c *study.Cell) error {
	for _, p := range c.Parts {
		sends := func(q study.Part) bool {
			return q.Workload.Builtin == study.HTTPClient && q.Workload.Name == p.Workload.Name
		}
		base := func(b study.Planned) bool { return analyse.IsBase(&b.Cell) && slices.ContainsFunc(b.Cell.Parts, sends) }
		if sends(p) && !p.Idle && p.Load.Control == study.Requests && p.Target > 0 && !slices.ContainsFunc(plan, base) {
			return &lab.LackError{What: "no base case of " + p.Workload.Name + ", which the rate is a share of", Remedy: addBase}
		}
	}
	return nil
}

const addBase = "add a case with one server and the rate " + study.MaxRate

// rateOf is the request rate of a part, per second; 0: as fast as possible. Its base case is that
// of the same series, since another machine has another maximum, and of all the study's cells the one
// that is most like c.
func rateOf(f *result.Folder, of *series, all []study.Cell, c *study.Cell, p *study.Part) (float64, error) {
	if p.Load.Control != study.Requests || p.Target == 0 {
		return 0, nil
	}
	runs, err := f.Runs()
	if err != nil {
		return 0, fmt.Errorf("read the base cases: %w", err)
	}
	runs = slices.DeleteFunc(runs, func(r result.Run) bool { return !of.has(&r) })
	base, ok := analyse.BaseRate(all, runs, c, p.Workload.Name)
	if !ok || base <= 0 { // 0 would be a closed loop
		return 0, &lab.LackError{What: "no valid run of the base case of " + p.Workload.Name + ", which the rate is a share of", Remedy: addBase}
	}
	return float64(p.Target) * base, nil
}
