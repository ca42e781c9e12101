package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
)

// jump sets the machine's wall clock, which from then on differs by d from the time that passes.
func (r *rig) jump(d time.Duration) {
	r.t.Helper()
	err := r.agent.ask(context.Background(), func() {
		r.agent.clock.wall = func() time.Time { return time.Now().Round(0).Add(d) }
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// Whenever the wall clock jumps, by whatever, a cap is in force for no longer than its lease:
// it may end early, if the clock was set forward. So is the next one.
func TestClockJumpsUnderACap(t *testing.T) {
	const lease, late = 5 * time.Minute, 2 * time.Second
	day := 24 * time.Hour
	for _, jumps := range [][]time.Duration{{day}, {-day}, {day, 0}, {-day, 0}, {day, -day, 2 * day}, {time.Minute, -time.Minute}, {30 * time.Second, -30 * time.Second, 0}, {-lease}, {lease}} {
		t.Run(fmt.Sprint(jumps), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, newMachine(t), t.TempDir())
				g := r.add("/batch/job-1", 1)
				r.start()
				defer r.stop()
				r.pass(time.Minute)
				r.jump(0)
				for range 2 {
					r.do(capping(command.Target{Task: "/batch/job-1"}, 0.1, lease.String(), "test"))
					if r.values[g.limit()] == "max" {
						t.Fatal("there is no cap")
					}
					begun, next := time.Now(), 0
					var back time.Duration
					for back == 0 && time.Since(begun) <= 2*lease {
						if next < len(jumps) && time.Since(begun) >= time.Duration(next+1)*time.Minute {
							r.jump(jumps[next])
							next++
						}
						r.pass(time.Second)
						if r.values[g.limit()] == "max" {
							back = time.Since(begun)
						}
					}
					if back == 0 || back > lease+late {
						t.Errorf("the limit is back after %s (0s: never), the lease is %s", back, lease)
					}
					if len(r.enforcer.Active()) > 0 || len(r.status().Caps) > 0 {
						t.Errorf("active: %v, caps %v", r.enforcer.Active(), r.status().Caps)
					}
				}
			})
		})
	}
}

// A kubelet that writes a task's limit every 10 s has the last word: quell never writes an old
// value over it, no cap is counted as in force that is not, and quell does not answer each of
// its writes with a cap.
func TestKubeletRewritesTheLimit(t *testing.T) {
	for _, value := range []string{"max", "0.5", "2"} {
		t.Run(value, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
				noisy := r.add("/batch/noisy-1", 0.05)
				r.suffering(noisy)
				r.start()
				defer r.stop()
				r.learn()
				noisy.set(1.5)
				r.settle()
				r.values[noisy.limit()] = value
				caps := 0
				r.write = func(file, to string) error {
					if file != noisy.limit() {
						return nil
					}
					if now := r.values[file]; strings.HasPrefix(to, "0.1") || strings.HasPrefix(to, "0.0") {
						caps++
					} else if now == value && to != value {
						t.Errorf("quell wrote %s over the kubelet's %s", to, now)
					}
					return nil
				}
				for range 60 * 6 {
					r.pass(10 * time.Second)
					r.settle()
					r.values[noisy.limit()] = value
					r.pass(2 * time.Second)
					if n := len(r.enforcer.Active()); n > 0 && r.values[noisy.limit()] == value {
						t.Fatalf("%d caps count as in force 2 s after the kubelet's write", n)
					}
				}
				t.Logf("%d caps in an hour", caps)
				if caps == 0 || caps > 30 {
					t.Errorf("%d caps in an hour, in which the kubelet wrote 360 times", caps)
				}
			})
		})
	}
}
