package render

import (
	"testing"

	"github.com/quell-dev/quell/internal/lab/result"
)

// Instances of one type may have different CPUs: the report says which had which.
func TestPlatforms(t *testing.T) {
	run := func(hosts ...result.Host) result.Run { return result.Run{Hosts: hosts} }
	r := &Report{Runs: []result.Run{run(),
		run(result.Host{Name: "test", Platform: "GenuineIntel-6-85-7-vm"}, result.Host{Name: "nb1", Platform: "GenuineIntel-6-85-7-vm"}),
		run(result.Host{Name: "metal", Platform: "GenuineIntel-6-85-4"}, result.Host{Name: "old"})}}
	if got, want := r.platforms(), "unknown: old; GenuineIntel-6-85-4: metal; GenuineIntel-6-85-7-vm: nb1, test"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (&Report{Runs: []result.Run{run()}}).platforms(); got != "" {
		t.Errorf("%q without other machines", got)
	}
}
