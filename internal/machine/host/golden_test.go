package host

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/sample"
)

var update = flag.Bool("update", false, "write the golden files")

// What is read of every host in testdata/hosts, as text, equals its golden file.
func TestHostsReadAsTheirGoldenFilesSay(t *testing.T) {
	hosts, err := filepath.Glob("../../../testdata/hosts/*.txtar")
	if err != nil || len(hosts) < 4 {
		t.Fatalf("hosts: %v, %v", hosts, err)
	}
	for _, file := range hosts {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			h := fixture(t, name)
			got := strings.ReplaceAll(describe(t, h), h.root, "ROOT")
			golden := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("-golden +read (accept with -update):\n%s", diff)
			}
		})
	}
}

func describe(t *testing.T, h *Host) string {
	var b strings.Builder
	out := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	l := h.Layout()
	hier, ok := l.CPU()
	out("layout %s, unified %q %v, v1 %v, cpu in %s %v", l.Kind, l.Unified, l.Controllers, l.V1, hier, ok)
	platform, err := h.Platform()
	must(err)
	out("platform %s", platform)
	boot, err := h.BootID()
	must(err)
	out("boot %s", boot)
	times, err := h.CPUTimes()
	must(err)
	out("times %+v busy %v", times.Total, times.Total.Busy())
	for _, c := range times.CPUs {
		out("  %+v", c)
	}
	topology, err := h.Topology()
	must(err)
	caches, nodes, smt := topology.Units()
	out("online %v, smt %v, caches %v, nodes %v", topology.Online, smt, caches, nodes)
	for _, c := range topology.CPUs {
		out("  cpu %d: package %d core %d node %d siblings %v llc %d of %d bytes for %v", c.ID, c.Package, c.Core, c.Node, c.Siblings, c.LLC.ID, c.LLC.Size, c.LLC.CPUs)
	}
	for _, hier := range []sample.Hierarchy{sample.Unified, sample.V1CPU} {
		tree, ok := h.trees[treeOf(hier)]
		if !ok {
			continue
		}
		out("cgroups of %s below %s", hier, tree.dir)
		unread, err := h.WalkAt(Place{hier, "/"}, func(p string, inode uint64) error {
			out("%s", p)
			if p == "/" { // its processes are all of the machine's
				return nil
			}
			c, err := h.OpenCgroup(hier, p)
			if err != nil {
				return err
			}
			defer c.Close()
			if c.Inode() != inode || c.Path() != p || c.Dir() != strings.TrimSuffix(tree.dir, "/")+p {
				t.Errorf("%s: inode %d, path %s, dir %s", p, c.Inode(), c.Path(), c.Dir())
			}
			places, err := c.Places()
			must(err)
			out("  places %+v", places)
			usage, err := c.Usage()
			out("  usage %+v %v", usage, errorText(err))
			if cpu, readErr := c.CPUTime()(); cpu != usage.CPU || errors.Is(readErr, ErrNoUsage) != errors.Is(err, ErrNoUsage) {
				t.Errorf("%s: CPUTime %s, %v; usage %+v, %v", p, cpu, readErr, usage, err)
			}
			stalled, err := c.Stalled("cpu")
			out("  stalled on cpu %v %v", stalled, errorText(err))
			members, err := c.Members()
			must(err)
			threads, err := c.Threads()
			must(err)
			below, err := c.Below()
			must(err)
			allowed, err := c.AllowedCPUs()
			must(err)
			out("  members %v, %d threads, %d cgroups below, CPUs %v", members, threads, len(below), allowed)
			return nil
		})
		must(err)
		must(unread.AsError())
	}
	out("capabilities")
	for _, c := range h.Capabilities() {
		out("  %s: %v; %s; %s; %s", c.Name, c.OK, c.Detail, c.Reason, c.Remedy)
	}
	return b.String()
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
