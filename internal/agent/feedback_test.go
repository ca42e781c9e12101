package agent

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/plan"
)

// A feedback cap is handled as every cap: each rate is journalled, written to the
// kernel's file and to the audit log, and undone when the lease ends or the agent
// stops. It takes less CPU time from the task than the fixed cap does.
func TestAFeedbackCapFollowsTheVictim(t *testing.T) {
	for _, stop := range []bool{false, true} {
		t.Run(fmt.Sprint("stop ", stop), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				// With a rule that accuses at the third outlier: trials are fixed caps.
				r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on", "enforce.cap=feedback", "detect.rule=quell", "detect.correlation=0.03")
				noisy := r.add("/batch/noisy-1", 0.05)
				v := r.suffering(noisy)
				v.cost = func() float64 { return 1 + 0.01*float64(time.Now().Minute()%5) + 0.03*noisy.rate()*noisy.rate() }
				r.start()
				r.learn()
				noisy.set(2)
				r.pass(3*time.Minute - 20*time.Second)
				first, err := strconv.ParseFloat(r.values[noisy.limit()], 64)
				if err != nil || first <= 0.1 || first >= 2 {
					t.Fatalf("the limit is %q, want more than the fixed cap's 0.1", r.values[noisy.limit()])
				}
				r.pass(4 * time.Minute)
				last, err := strconv.ParseFloat(r.values[noisy.limit()], 64)
				round := r.incidents()[0].Rounds[0]
				if err != nil || last == first || round.Rate != last || round.Adjusted == 0 || !round.Feedback {
					t.Errorf("the limit was %v and is %q; round %+v", first, r.values[noisy.limit()], round)
				}
				if caps := r.status().Caps; len(caps) != 1 || caps[0].Rate != last || caps[0].Until != round.Until {
					t.Errorf("caps %+v", caps)
				}
				if active := r.enforcer.Active(); len(active) != 1 || active[0].Until != round.Until || active[0].ID != round.ID {
					t.Errorf("the journal holds %+v", active)
				}
				if stop {
					r.stop()
				} else {
					r.pass(time.Minute)
					defer r.stop()
					if inc := r.incidents()[0]; inc.Outcome != plan.TruePositive {
						t.Errorf("outcome %s, %+v", inc.Outcome, inc.Rounds[0])
					}
				}
				if got := r.values[noisy.limit()]; got != "max" {
					t.Errorf("the limit is %q in the end", got)
				}
				var did []string
				for _, e := range r.audit() {
					did = append(did, e.What+" "+e.Result)
				}
				if got := strings.Join(did, ", "); !strings.HasPrefix(got, "cap ok, adjust ok") || !strings.HasSuffix(got, "uncap ok") || strings.Count(got, "uncap") != 1 {
					t.Errorf("audit: %s", got)
				}
			})
		})
	}
}

// A limit that another process has set is left as it is, also when the cap is to be
// adjusted. If the new rate cannot be written, the task is left unlimited.
func TestAdjustingACapThatIsNotOurs(t *testing.T) {
	for _, taken := range []bool{true, false} {
		t.Run(fmt.Sprint("taken over ", taken), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				// With a rule that accuses at the third outlier: trials are fixed caps.
				r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on", "enforce.cap=feedback", "detect.rule=quell", "detect.correlation=0.03")
				noisy := r.add("/batch/noisy-1", 0.05)
				v := r.suffering(noisy)
				v.cost = func() float64 { return 1 + 0.01*float64(time.Now().Minute()%5) + 0.03*noisy.rate()*noisy.rate() }
				r.start()
				defer r.stop()
				r.learn()
				noisy.set(2)
				r.pass(3*time.Minute - 20*time.Second)
				want := "max"
				if taken {
					want = "0.7"
					r.values[noisy.limit()] = want
				} else {
					r.write = func(file, value string) error {
						if value != "max" {
							return fmt.Errorf("write %s: no", file)
						}
						r.values[file] = value
						return nil
					}
				}
				r.pass(3 * time.Minute)
				if got := r.values[noisy.limit()]; got != want {
					t.Errorf("the limit is %q, want %q", got, want)
				}
				if caps := r.status().Caps; len(caps) != 0 || len(r.enforcer.Active()) != 0 {
					t.Errorf("caps %+v, journal %+v", caps, r.enforcer.Active())
				}
			})
		})
	}
}
