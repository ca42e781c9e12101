package fault

import (
	"cmp"
	"flag"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

var (
	killCount  = flag.Int("kills", 3, "number of kills")
	killSeed   = flag.Uint64("seed", 1, "random seed of their moments; 0: a new one")
	smokeStudy = flag.String("smoke", "", "instead run this study, studies/smoke.yaml, to its report, with one kill")
)

func TestKilledAndDisturbed(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.TwoCPUs)
	// When it is interrupted it still resets what it has changed.
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	seed := cmp.Or(*killSeed, uint64(time.Now().UnixNano()))
	if err := inject(ctx, quelltest.Program(t, "quell"), seed); err != nil {
		t.Error(err)
	}
}

// left finds a process that lives and a knob with another value.
func TestLeftIsSeen(t *testing.T) {
	me, err := stat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	living, reused := child{os.Getpid(), me.Name, me.Start}, child{os.Getpid(), me.Name, me.Start - 1}
	s := &testbed{knob: "no such value"}
	if all := s.left(1<<30, []child{living, reused}); len(all) != 2 {
		t.Errorf("%q, want a process and the knob", all)
	}
}
