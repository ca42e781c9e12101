//go:build cluster

package demo

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The cluster on this machine: if it is busy, possibly no task is named, but never an
// innocent one. No sample is lost or stored twice, all commands are done or refused and
// audited, and nothing is left behind.
func TestTheClusterLosesNothing(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.TwoCPUs)
	server := filepath.Join(t.TempDir(), "quell-server")
	cmd := exec.Command("go", "build", "-o", server, "github.com/quell-dev/quell/cmd/quell-server")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the server: %v\n%s", err, text)
	}
	r, err := RunCluster(t.Context(), ClusterOptions{Seed: 1, Agent: quelltest.Program(t, "quell-agent"), Server: server, Show: func(e Event) {
		if e.Of == 0 {
			t.Logf("%5.1fs %s", e.After.Seconds(), e.Text)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Named != "" && r.Named != r.Antagonist || len(r.Accused) > 0 || r.Twice > 0 || r.Missing > 0 || len(r.LeftBehind) > 0 || r.Stored < 100 {
		t.Errorf("%+v", r)
	}
	for _, want := range []func([3]string) bool{
		func(e [3]string) bool {
			return e[0] == "vera" && e[2] == "refused: the token's scope is viewer"
		},
		func(e [3]string) bool {
			return e[0] == "olga" && e[1] == "POST /v1/commands all machines enforcement on" && e[2] == "done on 3 machines"
		},
	} {
		if !slices.ContainsFunc(r.Audited, want) {
			t.Errorf("not in the audit log: %q", r.Audited)
		}
	}
	if left := leftOvers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
