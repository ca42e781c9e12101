package labcmd

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/udpload"
)

// udpKinds returns the built-in UDP workloads.
func udpKinds() []string {
	return []string{study.UDPSend, study.UDPReceive, study.UDPPing, study.UDPEcho}
}

// udpHelper is the hidden command of this program for UDP studies.
func udpHelper() *cobra.Command {
	return &cobra.Command{Use: "lab-udp KIND", Hidden: true, DisableFlagParsing: true, Short: "send, count or send back datagrams until the standard input closes",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("lab-udp: want one of " + strings.Join(udpKinds(), ", "))
			}
			p, counted, err := parseUDP(args[0], args[1:])
			if err != nil {
				return err
			}
			return udpload.Play(cmd.Context(), p, counted, os.Stdin, os.Stdout)
		}}
}

// parseUDP parses the flags of a built-in workload; the lab sets host and the times.
func parseUDP(kind string, args []string) (udpload.Part, udpload.Counted, error) {
	fs := flag.NewFlagSet(kind, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	var c udpload.Counted
	fs.DurationVar(&c.Warmup, "warmup", 0, "")
	fs.DurationVar(&c.Duration, "time", time.Second, "")
	var part func() udpload.Part // built from the parsed flags
	address := fmt.Sprintf(":%d", study.UDPPort)
	switch kind {
	case study.UDPSend:
		var s udpload.Sender
		host := fs.String("host", "127.0.0.1", "")
		fs.IntVar(&s.Flows, "flows", 2, "")
		fs.IntVar(&s.Size, "size", 1400, "")
		fs.BoolVar(&s.Vary, "vary", true, "")
		fs.Func("rate", "", func(text string) error {
			var r study.Rate
			err := r.UnmarshalText([]byte(text))
			s.Rate = float64(r)
			return err
		})
		part = func() udpload.Part { s.To = *host + address; return s }
	case study.UDPPing:
		var p udpload.Pinger
		host := fs.String("host", "127.0.0.1", "")
		fs.IntVar(&p.Size, "size", 64, "")
		fs.DurationVar(&p.Every, "every", time.Millisecond, "")
		fs.DurationVar(&p.Timeout, "timeout", 200*time.Millisecond, "")
		part = func() udpload.Part { p.To = *host + address; return p }
	case study.UDPReceive:
		part = func() udpload.Part { return udpload.Receiver{Listen: address} }
	case study.UDPEcho:
		part = func() udpload.Part { return udpload.Echo{Listen: address} }
	default:
		return nil, c, fmt.Errorf("%q: want one of %s", kind, strings.Join(udpKinds(), ", "))
	}
	if err := fs.Parse(args); err != nil {
		return nil, c, err
	}
	if fs.NArg() > 0 {
		return nil, c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	p := part()
	return p, c, udpload.Check(p)
}

// udpCommand is lab.Options.Command for UDP workloads.
func (l *labMachine) udpCommand(inner func(*study.Part) (lab.Job, error)) func(*study.Part) (lab.Job, error) {
	return func(p *study.Part) (lab.Job, error) {
		w := &p.Workload
		if !slices.Contains(udpKinds(), w.Builtin) {
			return inner(p)
		}
		if w.Time == 0 {
			return lab.Job{}, fmt.Errorf("workload %s: want time, the length of the measurement", w.Name)
		}
		argv := []string{l.self, "lab-udp", w.Builtin, "-warmup=" + w.Warmup.For.String(), "-time=" + w.Time.String()}
		if p.Asks != "" {
			argv = append(argv, "-host="+p.Asks)
		}
		return lab.Job{Argv: append(argv, strings.Fields(w.Options)...), Env: w.Env, WaitsForStart: true}, nil
	}
}
