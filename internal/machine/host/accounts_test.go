package host

import (
	"errors"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// ledger is an Accounts that a test fills.
type ledger struct {
	rows   map[int]Account
	users  int
	full   bool
	broken error
	closed bool
	reads  int
}

func (l *ledger) Follow(string, uint64) (int, bool) {
	if l.full {
		return 0, false
	}
	l.users++
	return l.users, true
}
func (l *ledger) Unfollow(int) error               { l.users--; return nil }
func (l *ledger) Read() error                      { l.reads++; return l.broken }
func (l *ledger) Row(row int) (a Account, ok bool) { a, ok = l.rows[row]; return a, ok }
func (l *ledger) Close() error                     { l.closed = true; return nil }

// Accounts are valid from ReadAccounts to EndAccounts only. What they lack, and everything once they
// fail, is read from files.
func TestAccounts(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2)
	h := real(t)
	l := &ledger{rows: map[int]Account{1: {CPU: time.Hour, HasCPU: true}}}
	h.UseAccounts(l, math.MaxInt32) // other tests may make many
	c := open(t, h, sample.Unified, mkcgroup(t, h, "", "accounts"))
	const byFile, byAccount = 0, time.Hour
	usage := func(when string, want time.Duration) {
		t.Helper()
		if u, err := c.Usage(); err != nil || u.CPU != want {
			t.Errorf("%s: usage %v, %v, want %v", when, u, err, want)
		}
	}
	read := func() {
		t.Helper()
		if err := h.ReadAccounts(); err != nil {
			t.Fatal(err)
		}
	}
	usage("before the first reading", byFile)
	read()
	usage("not followed", byFile)
	h.EndAccounts()
	if err := c.KeepOpen(true); err != nil || l.users == 0 || c.OpenFiles() != 0 {
		t.Fatalf("%v; %d accounts and %d files are open", err, l.users, c.OpenFiles())
	}
	usage("between readings", byFile)
	read()
	if _, err := c.Stalled("cpu"); err != nil && !errors.Is(err, ErrNoPSI) {
		t.Errorf("pressure that was not read: %v", err)
	}
	if _, v1 := h.Layout().V1["cpu"]; !v1 {
		usage("in a reading", byAccount)
	}
	l.rows[2], l.rows[3] = Account{Stalled: time.Minute, HasStalled: true}, Account{Stalled: time.Minute, HasStalled: true}
	usage("in a reading", byAccount)
	if d, err := c.Stalled("cpu"); err != nil || d != time.Minute {
		t.Errorf("pressure %v, %v", d, err)
	}
	h.EndAccounts()
	usage("after it", byFile)
	l.broken = errors.New("refused")
	if err := h.ReadAccounts(); !errors.Is(err, l.broken) || !l.closed {
		t.Errorf("%v, closed %v", err, l.closed)
	}
	usage("broken", byFile)
	read() // nothing
	if err := c.KeepOpen(true); err != nil || c.OpenFiles() == 0 {
		t.Errorf("broken: %v, %d files are open", err, c.OpenFiles())
	}
	usage("from kept files", byFile)
}

// Without room for it a cgroup keeps its files open, as before.
func TestNoRoomForAnAccount(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2)
	h := real(t)
	h.UseAccounts(&ledger{full: true}, FewCgroups)
	c := open(t, h, sample.Unified, mkcgroup(t, h, "", "no-room"))
	if err := c.KeepOpen(true); err != nil || c.OpenFiles() == 0 {
		t.Errorf("%v, %d files are open", err, c.OpenFiles())
	}
	if err := h.ReadAccounts(); err != nil {
		t.Fatal(err)
	}
	if u, err := c.Usage(); err != nil || u.CPU != 0 {
		t.Errorf("%v, %v", u, err)
	}
}

// All cgroups are walked only if that is sooner than opening the files of those that are followed.
func TestManyCgroupsAreNotWalked(t *testing.T) {
	h, top := flat(t, "/a")
	if err := os.WriteFile(top+"/a/cpu.stat", []byte("usage_usec 7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const head = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
	l := &ledger{rows: map[int]Account{1: {CPU: time.Hour, HasCPU: true}}}
	h.UseAccounts(l, FewCgroups)
	c := open(t, h, sample.Unified, "/a")
	if err := c.KeepOpen(true); err != nil || l.users == 0 {
		t.Fatalf("%v, %d accounts", err, l.users)
	}
	most := FewCgroups + cgroupsPerRow*l.users
	for _, test := range []struct {
		table string
		want  time.Duration
	}{
		{"", time.Hour},
		{head + fmt.Sprintf("cpu\t0\t%d\t1\nmemory\t0\t%[1]d\t1\n", most), time.Hour},
		{head + fmt.Sprintf("cpu\t0\t%d\t1\n", most+1), 7 * time.Microsecond},
		{head + fmt.Sprintf("cpu\t1\t1\t1\nnet_cls\t0\t%d\t1\n", most), 7 * time.Microsecond},
		{head + fmt.Sprintf("cpu\t1\t%d\t1\ncpuacct\t1\t%[1]d\t1\nmemory\t4\t1000000\t1\n", most), time.Hour},
	} {
		if err := os.WriteFile(h.Path("/proc/cgroups"), []byte(test.table), 0o644); err != nil {
			t.Fatal(err)
		}
		reads := l.reads
		if err := h.ReadAccounts(); err != nil {
			t.Fatal(err)
		}
		u, err := c.Usage()
		h.EndAccounts()
		if err != nil || u.CPU != test.want || (l.reads > reads) != (test.want == time.Hour) {
			t.Errorf("%q: usage %v, %v, %d walks", test.table, u, err, l.reads-reads)
		}
	}
}
