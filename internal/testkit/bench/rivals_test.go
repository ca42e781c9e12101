package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/quell-dev/quell/internal/agent/child"
)

// buildRivals builds the rivals that bin lacks. Its output says what cannot be built; that
// is not measured.
func buildRivals(ctx context.Context, bin string) error {
	cmd := exec.CommandContext(ctx, "./rivals.sh", bin)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build rivals (or -rivals=have): %w", err)
	}
	return nil
}

// bpftraceProgram adds up the CPU time of each cgroup at every context switch, and prints it
// every 10 s: the least that this way of counting costs.
const bpftraceProgram = `BEGIN { printf("ready\n"); }
tracepoint:sched:sched_switch { if (@at[cpu]) { @used[cgroup] = sum(nsecs - @at[cpu]); } @at[cpu] = nsecs; }
interval:s:10 { print(@used); clear(@used); }`

// byBpftrace is bare bpftrace, if it is installed. What its program costs at switches is counted
// as use of the tasks that switch, so no other contender runs at that time.
func byBpftrace() contender {
	program, absent := exec.LookPath("bpftrace")
	out := func(r *run) string { return filepath.Join(r.scratch, "bpftrace.out") }
	return contender{name: bpftraceName, heavy: true, absent: absent,
		commands: func(r *run, n int) ([][]string, string, error) {
			if err := os.WriteFile(out(r), nil, 0o600); err != nil {
				return nil, "", err
			}
			// It reads tracepoints there; not every machine has them mounted.
			mounts := `mount -t debugfs none /sys/kernel/debug; mount -t tracefs none /sys/kernel/tracing; exec "$@"`
			return [][]string{{"unshare", "--mount", "sh", "-c", mounts, "sh", program, "-o", out(r), "-e", bpftraceProgram}}, "", nil
		},
		ready: func(r *run) (bool, error) {
			text, err := os.ReadFile(out(r))
			return strings.Contains(string(text), "ready"), err
		}}
}

// rivals returns all rivals, those that bin lacks as absent. The versions are those of
// rivals.sh.
func rivals(bin string) []contender {
	find := func(name string) (program string, absent error) {
		program, err := filepath.Abs(filepath.Join(bin, name))
		if err == nil {
			_, err = os.Stat(program)
		}
		return program, err
	}
	exporter, exporterErr := find("node_exporter")
	cadvisor, cadvisorErr := find("cadvisor")
	below, belowErr := find("below")
	return []contender{
		byBpftrace(),
		{name: "node_exporter 1.9.1", absent: exporterErr, commands: func(r *run, n int) ([][]string, string, error) {
			at, err := child.FreeAddress()
			return [][]string{{exporter, "--web.listen-address=" + at}}, "http://" + at + "/metrics", err
		}},
		{name: "cAdvisor 0.60.6", heavy: true, unified: true, names: true, absent: cadvisorErr, commands: func(r *run, n int) ([][]string, string, error) {
			at, err := child.FreeAddress()
			return [][]string{{cadvisor, "-listen=" + at}}, "http://" + at + "/metrics", err
		}},
		{name: "below 0.9.0, every 5 s", heavy: true, unified: true, absent: belowErr, commands: func(r *run, n int) ([][]string, string, error) {
			dir := filepath.Join(r.scratch, "below")
			if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
				return nil, "", err
			}
			conf := filepath.Join(dir, "below.conf")
			text := fmt.Sprintf("log_dir = %q\nstore_dir = %q\n", dir, dir)
			return [][]string{{below, "--config", conf, "record", "--disable-exitstats"}}, "", os.WriteFile(conf, []byte(text), 0o600)
		}},
	}
}
