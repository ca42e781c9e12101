package runq

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// sayOpen is the main of a child that must not run as root.
func sayOpen() {
	src, err := Open()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer src.Close()
	fmt.Println(src.Info().Variant, src.Info().Fallback)
	for _, c := range Capabilities() {
		fmt.Printf("%s %t %q %q\n", c.Name, c.OK, c.Reason, c.Remedy)
	}
}

func TestOpenWithoutPrivileges(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Schedstat)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "RUNQ_OPEN=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"schedstat run queue by eBPF: not supported: ", "operation not permitted",
		CapProgram + ` false`, "CAP_BPF", CapSchedstat + ` true`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestOpen(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.Schedstat)
	for _, tt := range []struct {
		tasks   int
		variant string
	}{
		{maxTasks, VariantBPF},
		{1 << 30, VariantSchedstat}, // more than fits
	} {
		src, err := openFor(tt.tasks)
		if err != nil {
			t.Fatal(err)
		}
		why := src.Info().Fallback
		if src.Info().Variant != tt.variant || src.Info().Signal != sample.RunQ || (why == "") != (tt.variant == VariantBPF) {
			t.Errorf("%d tasks: variant %q, signal %q, fallback %q", tt.tasks, src.Info().Variant, src.Info().Signal, why)
		}
		if err := src.Close(); err != nil {
			t.Error(err)
		}
	}
}

// errNoBPF is the reason that tests give for counting with schedstat.
var errNoBPF = errors.New("eBPF is switched off")

func TestOpenNothing(t *testing.T) {
	proc := t.TempDir()
	_, err := openSchedstat(proc, errNoBPF)
	var e *counter.NotSupportedError
	if !errors.As(err, &e) || e.Reason == "" || e.Remedy == "" || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a schedstat: %v", err)
	}
	write(t, proc, "thread-self/schedstat", "0 0 0\n")
	_, err = openSchedstat(proc, errNoBPF)
	if !errors.As(err, &e) || !strings.Contains(e.Remedy, "task_delayacct") {
		t.Errorf("with schedstat switched off: %v", err)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
