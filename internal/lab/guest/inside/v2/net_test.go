//go:build inguest

package v2

import (
	"path/filepath"
	"testing"

	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/netq"
	"github.com/quell-dev/quell/internal/machine/egress"
)

// The kernel accepts every program of the network signal, including those on functions,
// and the program of the corresponding limit.
func TestNetworkPrograms(t *testing.T) {
	h := machine(t)
	s, err := netq.Open()
	if err != nil {
		t.Fatal(err)
	}
	if f := s.Info().Fallback; f != "" {
		t.Errorf("packets are counted %s", f)
	}
	if err := s.Start(); err != nil {
		t.Error(err)
	} else if err := s.Stop(counter.WindowEnd{}, nil); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	f := egress.NewFiles(h)
	file := filepath.Join(h.Layout().Unified, cgroup(t, "/quell-test-sends"), egress.Name)
	for _, value := range []string{"65536", egress.None} {
		if err := f.WriteValue(file, value); err != nil {
			t.Fatal(err)
		}
		if got, err := f.ReadValue(file); err != nil || got != value {
			t.Errorf("it reads %q after writing %q: %v", got, value, err)
		}
	}
}
