package cli

import (
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// The names of jobs that are no pods name no workload.
func TestPodsOfJobs(t *testing.T) {
	for job, want := range map[sample.JobName]string{
		"shop/web/app": "shop/web", "shop/web": "shop/web", "web": "web", "user-1/web/app": "user-1/web",
		"docker/web": "", "podman/db": "", "vm/db": "", "user-1000/podman/db": "", "user-1000/vm/db": "",
	} {
		got := ""
		if w, ok := podsOf(job); ok {
			got = w.String()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", job, got, want)
		}
	}
}
