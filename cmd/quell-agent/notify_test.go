package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The service manager is notified when the agent answers, that its loop runs, and when
// it stops.
func TestTellsTheServiceManager(t *testing.T) {
	t.Parallel()
	quelltest.Need(t, quelltest.Root)
	dir := state(t)
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/notify", Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hear := func() string {
		t.Helper()
		b := make([]byte, 64)
		if err := l.SetReadDeadline(time.Now().Add(4 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := l.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	d := startWith(t, dir, []string{"NOTIFY_SOCKET=" + dir + "/notify", "WATCHDOG_USEC=300000"}, settings(dir)...)
	if got := hear(); got != "READY=1" {
		t.Errorf("first it heard %q", got)
	}
	for range 3 {
		if got := hear(); got != "WATCHDOG=1" {
			t.Errorf("then %q", got)
		}
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for heard := ""; heard != "STOPPING=1"; {
		if heard = hear(); heard != "WATCHDOG=1" && heard != "STOPPING=1" {
			t.Fatalf("in the end %q", heard)
		}
	}
}

// If the loop hangs no keep-alive message is sent, although the process lives.
func TestNoSignOfLifeFromALoopThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard bytes.Buffer
		var hangs atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			notifier{&heard, time.Second}.watch(ctx, func(ctx context.Context) error {
				if hangs.Load() {
					<-ctx.Done()
				}
				return ctx.Err()
			})
		}()
		<-time.After(3500 * time.Millisecond)
		synctest.Wait()
		if n := strings.Count(heard.String(), "WATCHDOG=1"); n != 4 {
			t.Errorf("%d signs of life in 3.5 s, want 4", n)
		}
		hangs.Store(true)
		heard.Reset()
		<-time.After(time.Minute)
		synctest.Wait()
		if heard.Len() > 0 {
			t.Errorf("a loop that hangs says %q", heard.String())
		}
		cancel()
		<-ended
	})
}

func TestWithoutAServiceManager(t *testing.T) {
	n, done, err := openNotifier(func(string) string { return "" })
	if err != nil || done() != nil {
		t.Fatal(err)
	}
	n.send("READY=1")
	n.watch(t.Context(), func(context.Context) error { t.Error("alive was called without a manager"); return nil })
	if _, _, err := openNotifier(func(string) string { return "/nowhere/at/all" }); err == nil {
		t.Error("a socket that is not there is no error")
	}
}
