//go:build guests

package guest

import "testing"

// TestV2 is quell on kernels with cgroup v2 alone.
func TestV2(t *testing.T) {
	const pkg = "internal/guest/inside/v2"
	t.Run("placements", func(t *testing.T) {
		box{
			Machine: Machine{Arch: AMD64, CPUs: CPUs{Cores: 2}},
			tests:   []insideTest{{pkg: pkg, args: []string{"-test.run=Placement"}}},
		}.run(t)
	})
}
