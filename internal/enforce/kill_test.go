package enforce

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/host"
	"github.com/quell-dev/quell/internal/quelltest"
	"github.com/quell-dev/quell/internal/sample"
)

const (
	originalQuota  = "200000"
	originalPeriod = "100000"
	foreignQuota   = "33333"
)

// beating tells the parent of each file it touches, by a byte on stdout, so
// that kills are spread over what is done and not over time.
type beating struct{ *host.Host }

func (b beating) ReadValue(file string) (string, error) {
	os.Stdout.Write([]byte("r"))
	return b.Host.ReadValue(file)
}

func (b beating) WriteValue(file, value string) error {
	os.Stdout.Write([]byte("w"))
	return b.Host.WriteValue(file, value)
}

func openBeating() (*Enforcer, error) {
	h, err := host.Open("/")
	if err != nil {
		return nil, err
	}
	return Open(os.Getenv("QUELL_ENFORCE_STATE"), beating{h})
}

// childLoop caps and uncaps a cgroup until it is killed.
func childLoop() error {
	e, err := openBeating()
	if err != nil {
		return err
	}
	dir := os.Getenv("QUELL_ENFORCE_CGROUP")
	inode, err := e.files.Inode(dir)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		now := sample.At(time.Now())
		c := Change{ID: strconv.Itoa(i), Dir: dir, Inode: inode, From: now, Until: now + 1000, Task: "/batch", Why: "test",
			Writes: []host.Write{
				{File: filepath.Join(dir, "cpu.cfs_quota_us"), Old: originalQuota, New: strconv.Itoa(10000 + i%5000)},
				{File: filepath.Join(dir, "cpu.cfs_period_us"), Old: originalPeriod, New: "50000"},
			}}
		if err := e.Apply(now, c); err != nil {
			return err
		}
		if _, err := e.Undo(now, c.ID, "test"); err != nil {
			return err
		}
	}
}

func childRestore() error {
	e, err := openBeating()
	if err != nil {
		return err
	}
	_, err = e.RestoreAll(sample.At(time.Now()), "start")
	return errors.Join(err, e.Close())
}

// killedChild runs a child and kills it after it has touched n files. A child
// that ends by itself before that must have succeeded.
func killedChild(t *testing.T, mode, state, dir string, n int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childMode+"="+mode, "QUELL_ENFORCE_STATE="+state, "QUELL_ENFORCE_CGROUP="+dir,
		"GORACE=atexit_sleep_ms=0") // or a restore that is not killed takes a second to end
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	_, err = io.CopyN(io.Discard, bufio.NewReaderSize(out, 16), int64(n))
	if err == nil {
		must(t, cmd.Process.Signal(syscall.SIGKILL))
	}
	_, _ = io.Copy(io.Discard, out)
	if ended := cmd.Wait(); err != nil && (ended != nil || mode == "loop") {
		t.Fatalf("child %s ended after %v: %v", mode, err, ended)
	}
}

// QUELL_TEST_KILLS sets how often the child is killed, QUELL_TEST_SEED repeats
// a run as far as the kernel's timing allows.
func fromEnv(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	must(t, err)
	return n
}

func TestKilledAtRandomPointsOnARealCgroup(t *testing.T) {
	quelltest.Need(t, quelltest.CgroupV1)
	h, err := host.Open("/")
	must(t, err)
	dir := filepath.Join(h.Layout().V1["cpu"], fmt.Sprintf("quell-test-enforce-%d", os.Getpid()))
	must(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	})
	quota, period := filepath.Join(dir, "cpu.cfs_quota_us"), filepath.Join(dir, "cpu.cfs_period_us")
	get := func(file string) string {
		t.Helper()
		v, err := h.ReadValue(file)
		must(t, err)
		return v
	}
	state := filepath.Join(t.TempDir(), "state")
	kills := int(fromEnv(t, "QUELL_TEST_KILLS", 100))
	seed := fromEnv(t, "QUELL_TEST_SEED", uint64(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var capped, half, twice, foreign, removed int
	for i := range kills {
		must(t, h.WriteValue(period, originalPeriod))
		must(t, h.WriteValue(quota, originalQuota))
		killedChild(t, "loop", state, dir, 1+rng.IntN(60))
		q, p := get(quota), get(period)
		if q != originalQuota {
			capped++
		}
		if q != originalQuota && p == originalPeriod {
			half++
		}
		wantQuota, wantPeriod := originalQuota, originalPeriod
		switch i % 5 {
		case 3: // somebody sets a limit of their own
			must(t, h.WriteValue(quota, foreignQuota))
			wantQuota, wantPeriod = foreignQuota, p
			foreign++
		case 4: // the cgroup is removed and made again, with the same values
			must(t, os.Remove(dir))
			must(t, os.Mkdir(dir, 0o755))
			must(t, h.WriteValue(period, p))
			must(t, h.WriteValue(quota, q))
			wantQuota, wantPeriod = q, p
			removed++
		}
		if rng.IntN(2) == 0 {
			killedChild(t, "restore", state, dir, 1+rng.IntN(5))
			twice++
		}
		e, err := Open(state, h)
		must(t, err)
		_, err = e.RestoreAll(sample.At(time.Now()), "start")
		must(t, err)
		if len(e.Active()) > 0 {
			t.Errorf("kill %d: still active: %v", i, e.Active())
		}
		must(t, e.Close())
		if gotQ, gotP := get(quota), get(period); gotQ != wantQuota || gotP != wantPeriod {
			t.Fatalf("kill %d: quota %s period %s, want %s %s (at the kill: %s %s)", i, gotQ, gotP, wantQuota, wantPeriod, q, p)
		}
	}
	t.Logf("%d kills: %d with a cap in force, of them %d half applied or half undone; %d restores killed too; %d foreign limits, %d cgroups made again",
		kills, capped, half, twice, foreign, removed)
	if capped < kills/10 {
		t.Errorf("only %d of %d kills met a cap in force", capped, kills)
	}
}
