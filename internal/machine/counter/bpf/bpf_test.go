package bpf

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// A refusal keeps the kernel's answer and names what would help.
func TestRefusal(t *testing.T) {
	for _, c := range []struct {
		err    error
		remedy string
	}{
		{unix.EPERM, "CAP_BPF"},
		{fmt.Errorf("load: %w", unix.EACCES), "CAP_PERFMON"},
		{fmt.Errorf("remove RLIMIT_MEMLOCK: %w", unix.EPERM), "LimitMEMLOCK=infinity"},
		{btf.ErrNotFound, "CONFIG_DEBUG_INFO_BTF"},
		{unix.ENOENT, "/sys/kernel/btf/vmlinux"},
		{unix.ENOMEM, "fewer tasks"},
		{unix.EINVAL, "use Linux 9.9 with luck"},
	} {
		err := NotSupported("the thing", "Linux 9.9 with luck", c.err)
		var e *counter.NotSupportedError
		if !errors.As(err, &e) || !errors.Is(err, c.err) || e.What != "the thing" || !strings.Contains(e.Remedy, c.remedy) {
			t.Errorf("%v becomes %+v; want a remedy with %q", c.err, e, c.remedy)
		}
	}
}

func TestClearEmptiesAMapAndMayDoSoTwice(t *testing.T) {
	quelltest.Need(t, quelltest.EBPF)
	m, err := Load(func(bool) (*ebpf.Map, error) {
		return ebpf.NewMap(&ebpf.MapSpec{Name: "quell_test", Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: 500})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for k := range uint64(500) {
		if err := m.Put(k, uint32(1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := Clear[uint64](m); err != nil {
			t.Fatal(err)
		}
		var k uint64
		var v uint32
		if m.Iterate().Next(&k, &v) {
			t.Fatalf("key %d is left", k)
		}
	}
}

// What is attached is detached again, also by a second Detach.
func TestNothingIsLeft(t *testing.T) {
	var h Hooks
	if err := errors.Join(h.Attach(), h.Detach(), h.Detach()); err != nil {
		t.Error(err)
	}
}

// What was noted in windows that follow each other closely is relied on for some time.
func TestWhatWasNotedInEarlierWindows(t *testing.T) {
	var s seen
	const second = time.Second
	for _, w := range []struct {
		what            string
		open, end, want time.Duration
	}{
		{"the first window", 100 * second, 102 * second, 100 * second},
		{"at once", 102*second + 1, 104 * second, 100 * second},
		{"the third", 104*second + shortPause, 111 * second, 100 * second},
		{"long ago", 112 * second, 114 * second, 112*second - mostBefore},
		{"after a pause", 115*second + 1, 116 * second, 115*second + 1},
	} {
		if got := s.open(w.open); got != w.want {
			t.Errorf("%s: from %s, want %s", w.what, got, w.want)
		}
		s.end(w.end)
		s.end(w.end + 100*second) // it has ended already
	}
}

// A tenant that fills the map takes nothing of what a followed task has room for.
func TestRoomIsKept(t *testing.T) {
	quelltest.Need(t, quelltest.EBPF)
	const room = 64
	m, err := Load(func(bool) (*ebpf.Map, error) {
		return ebpf.NewMap(&ebpf.MapSpec{Name: "quell_test", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: room})
	})
	if err != nil {
		t.Fatal(err)
	}
	p := NewPrograms[uint64](m, nil, Parts{}, m.Close)
	defer p.Close()
	for range 2 {
		followed := []uint64{1, 2, 3}
		if err := p.Open(map[uint64]uint64{1: 1, 2: 1, 3: 3}, nil); err != nil {
			t.Fatal(err)
		}
		filled := 0
		for id := uint64(1000); m.Update(id, uint64(1), ebpf.UpdateNoExist) == nil; id++ {
			filled++
		}
		for _, id := range followed {
			if err := m.Update(id, 10*id, ebpf.UpdateExist); err != nil || p.Of(id) != 10*id {
				t.Errorf("cgroup %d: %v, %d counted", id, err, p.Of(id))
			}
		}
		if filled != room-len(followed) {
			t.Errorf("%d others in a map of %d", filled, room)
		}
		if err := p.Detach(); err != nil {
			t.Error(err)
		}
	}
}
