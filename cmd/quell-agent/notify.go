package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

// notifier reports the agent's state to the service manager (sd_notify(3)). Without a
// manager it does nothing.
type notifier struct {
	w io.Writer
	// every is the interval of the keep-alive messages; 0: none are wanted.
	every time.Duration
}

// openNotifier reads the manager's environment variables. The caller closes what it
// returns.
func openNotifier(getenv func(string) string) (notifier, func() error, error) {
	none := func() error { return nil }
	name := getenv("NOTIFY_SOCKET")
	if name == "" {
		return notifier{}, none, nil
	}
	conn, err := net.Dial("unixgram", name) // a leading @ is an abstract name to both
	if err != nil {
		return notifier{}, none, fmt.Errorf("reach the service manager: %w", err)
	}
	n := notifier{w: conn}
	us, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if pid := getenv("WATCHDOG_PID"); err == nil && us > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.every = time.Duration(us) * time.Microsecond / 3
	}
	return n, conn.Close, nil
}

// send sends a state. It ignores errors: a manager that does not listen is no reason to
// stop.
func (n notifier) send(state string) {
	if n.w != nil {
		_, _ = io.WriteString(n.w, state)
	}
}

// watch sends keep-alive messages until ctx ends, as long as alive answers in time. alive
// must ask the loop itself, because this goroutine would go on while the loop hangs.
func (n notifier) watch(ctx context.Context, alive func(context.Context) error) {
	if n.w == nil || n.every == 0 {
		return
	}
	ticker := time.NewTicker(n.every)
	defer ticker.Stop()
	for {
		turn, cancel := context.WithTimeout(ctx, n.every)
		err := alive(turn)
		cancel()
		if err == nil {
			n.send("WATCHDOG=1")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
