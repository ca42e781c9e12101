package cli

import (
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestQueryEngineFails: errors in a query for Spark are reported with a remedy before
// Spark is contacted. (make test-spark uses a real Spark.)
func TestQueryEngineFails(t *testing.T) {
	dir := t.TempDir()
	s, err := store.Open(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	nobody := "sc://" + quelltest.FreeAddress(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"SELECT 1", "--engine", nobody}, "want SQL, --store DIR"},
		{[]string{"--canned", "most-hurt-jobs", "--engine", nobody, "--store", dir}, "want SQL, --store DIR"},
		{[]string{"SELECT 1", "--engine", nobody, "--store", dir, "--rows", "0"}, "at least one"},
		{[]string{"SELECT 1", "--engine", "spark", "--store", dir}, "sc://HOST:PORT"},
		{[]string{"SELECT 1", "--engine", nobody, "--store", dir + "/none"}, "STATE_DIR/store"},
		{[]string{"SELECT 1", "--engine", nobody, "--store", dir, "--since", "yesterday"}, "--since"},
		{[]string{"SELECT 1", "--engine", nobody, "--store", dir}, "reach Spark at " + nobody},
	} {
		got := quell(t, map[string]string{}, append([]string{"query"}, c.args...)...)
		if got.Code != app.ExitUsage || !strings.Contains(got.Err, c.want) {
			t.Errorf("%v: exit %d, %s; want %d and %q", c.args, got.Code, got.Err, app.ExitUsage, c.want)
		}
	}
}
