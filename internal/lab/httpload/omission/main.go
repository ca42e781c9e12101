// Command omission compares the figures of load generators for a server that stands
// still for a second: an open loop, a closed one, and wrk if it is installed, all at
// half of the server's maximum (docs/studies/net-io.md).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab/httpload"
)

// The server answers each request after each, seats at a time; this determines its
// maximum, and half as many connections get half of that.
const (
	each  = 20 * time.Millisecond
	seats = 32

	span  = 20 * time.Second
	stall = time.Second // in the middle of span
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, "omission:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := show(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "omission:", err)
		os.Exit(1)
	}
}

// serve prints its address and serves until its standard input closes.
func serve() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	free := make(chan struct{}, seats)
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		free <- struct{}{}
		time.Sleep(each)
		<-free
		_, _ = io.WriteString(w, "hello")
	}))
}

func show(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	server := exec.CommandContext(ctx, self, "serve")
	stdin, err := server.StdinPipe()
	if err != nil {
		return err
	}
	out, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	defer func() { _ = stdin.Close(); _ = server.Wait() }()
	var address string
	if _, err := fmt.Fscanln(out, &address); err != nil {
		return fmt.Errorf("read the server's address: %w", err)
	}
	o := httpload.Options{URL: "http://" + address + "/", Connections: 2 * seats, Warmup: time.Second, Duration: 3 * time.Second}
	best, _, err := httpload.Maximum(ctx, o, nil)
	if err != nil {
		return err
	}
	rate := best.Rate / 2
	fmt.Printf("maximum %.0f answers/s; half of it is %.0f requests/s\n", best.Rate, rate)
	o.Duration = span
	calm, err := httpload.Open(ctx, o, rate)
	if err != nil {
		return err
	}
	fmt.Printf("open loop, no stall: offered %.1f, achieved %.1f answers/s (%+.2f %%), p99 %s\n", rate, calm.Rate, 100*(calm.Rate/rate-1), ms(calm.Latency.P99))
	fmt.Printf("then with the server stopped for %s in the middle of %s:\n", stall, span)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "generator\tanswers/s\tp50\tp90\tp99\tp99.9\tmax")
	line := func(name string, r *httpload.Result, q httpload.Quantiles) {
		fmt.Fprintf(table, "%s\t%.0f\t%s\t%s\t%s\t%s\t%s\n", name, r.Rate, ms(q.P50), ms(q.P90), ms(q.P99), ms(q.P999), ms(q.Max))
	}
	open, err := stopped(ctx, server.Process.Pid, func() (*httpload.Result, error) { return httpload.Open(ctx, o, rate) })
	if err != nil {
		return err
	}
	line("open loop, from the intended start", open, open.Latency)
	line("the same, from the sending", open, open.Service)
	o.Connections = seats / 2
	closed, err := stopped(ctx, server.Process.Pid, func() (*httpload.Result, error) { return httpload.Closed(ctx, o) })
	if err != nil {
		return err
	}
	line(fmt.Sprintf("closed loop, %d connections", o.Connections), closed, closed.Latency)
	if err := wrk(ctx, server.Process.Pid, o, table); err != nil {
		return err
	}
	return table.Flush()
}

func ms(s float64) string { return fmt.Sprintf("%.1f ms", 1000*s) }

// stopped stops a process for the time of stall in the middle of run's counted time.
func stopped[T any](ctx context.Context, pid int, run func() (T, error)) (T, error) {
	ended := make(chan error, 1)
	go func() {
		err := pause(ctx, time.Second+span/2)
		if err == nil {
			err = unix.Kill(pid, unix.SIGSTOP)
		}
		ended <- errors.Join(err, pause(ctx, stall), unix.Kill(pid, unix.SIGCONT))
	}()
	r, err := run()
	return r, errors.Join(err, <-ended)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

var (
	wrkRate      = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	wrkQuantiles = regexp.MustCompile(`(?m)^\s+(50|90|99)%\s+(\S+)`)
	wrkMax       = regexp.MustCompile(`Latency\s+\S+\s+\S+\s+(\S+)`)
)

// wrk measures with wrk and adds its figures to the table.
func wrk(ctx context.Context, pid int, o httpload.Options, to io.Writer) error {
	if _, err := exec.LookPath("wrk"); err != nil {
		fmt.Fprintln(to, "wrk: not installed (apt-get install wrk)")
		return nil
	}
	out, err := stopped(ctx, pid, func() ([]byte, error) {
		return exec.CommandContext(ctx, "wrk", "-t1", fmt.Sprintf("-c%d", o.Connections), fmt.Sprintf("-d%ds", int((span+time.Second).Seconds())), "--timeout", "10s", "--latency", o.URL).CombinedOutput()
	})
	if err != nil {
		return fmt.Errorf("wrk: %w: %s", err, out)
	}
	one := func(re *regexp.Regexp) string {
		if m := re.FindSubmatch(out); m != nil {
			return string(m[1])
		}
		return "–"
	}
	q := map[string]string{"50": "–", "90": "–", "99": "–"}
	for _, m := range wrkQuantiles.FindAllSubmatch(out, -1) {
		q[string(m[1])] = spaced(string(m[2]))
	}
	_, err = fmt.Fprintf(to, "wrk, %d connections\t%s\t%s\t%s\t%s\t–\t%s\n", o.Connections, one(wrkRate), q["50"], q["90"], q["99"], spaced(one(wrkMax)))
	return err
}

// spaced puts a blank before wrk's unit.
func spaced(s string) string {
	if i := strings.IndexFunc(s, func(r rune) bool { return r >= 'a' && r <= 'z' }); i > 0 {
		return s[:i] + " " + s[i:]
	}
	return s
}
