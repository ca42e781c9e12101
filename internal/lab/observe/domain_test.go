package observe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/xen"
	"github.com/quell-dev/quell/internal/machine/host"
)

// domainEnv is an environment whose threads are files below a root.
type domainEnv struct {
	lab.Environment
	threads []int
	usage   lab.Usage
	traffic lab.Traffic
}

func (e *domainEnv) Threads() ([]int, error)       { return e.threads, nil }
func (e *domainEnv) Usage() (lab.Usage, error)     { return e.usage, nil }
func (e *domainEnv) Traffic() (lab.Traffic, error) { return e.traffic, nil }

func TestDomains(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		put(t, root, path, text)
	}
	write("proc/self/mountinfo", "")
	thread := func(tid, tgid int, running, waiting, executions, woken, guest int) {
		write(fmt.Sprintf("proc/%d/schedstat", tid), fmt.Sprintf("%d %d %d\n", running, waiting, executions))
		write(fmt.Sprintf("proc/%d/status", tid), fmt.Sprintf("Name:\tx\nTgid:\t%d\nvoluntary_ctxt_switches:\t%d\nnonvoluntary_ctxt_switches:\t9\n", tgid, woken))
		fields := strings.Repeat("0 ", 39)
		write(fmt.Sprintf("proc/%d/stat", tid), fmt.Sprintf("%d (CPU 0/KVM) S) S %s%d 0 0\n", tid, fields, guest))
	}
	h, err := host.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	e := &domainEnv{threads: []int{7, 8}, usage: lab.Usage{User: time.Second, System: 2 * time.Second}, traffic: lab.Traffic{Sent: 100, Received: 50, Packets: 7}}
	thread(7, 5, 1e9, 2e9, 10, 5, 100)
	thread(8, 5, 0, 0, 0, 0, 0)
	kvm := func(injected, io, mmio int) {
		write("sys/kernel/debug/kvm/5-12/irq_injections", fmt.Sprintln(injected))
		write("sys/kernel/debug/kvm/5-12/io_exits", fmt.Sprintln(io))
		write("sys/kernel/debug/kvm/5-12/mmio_exits", fmt.Sprintln(mmio))
	}
	kvm(10, 20, 30)
	w := &domains{host: h, envs: []lab.Environment{e}}
	if err := w.window(true); err != nil {
		t.Fatal(err)
	}
	thread(7, 5, 1.5e9, 2.25e9, 30, 17, 150)
	// Thread 8 has ended, thread 9 is new.
	thread(9, 5, 9e9, 9e9, 900, 900, 0)
	e.threads, e.usage, e.traffic = []int{7, 9}, lab.Usage{User: 1500 * time.Millisecond, System: 2 * time.Second}, lab.Traffic{Sent: 4196, Received: 50, Packets: 10}
	kvm(110, 21, 31)
	if err := w.window(false); err != nil {
		t.Fatal(err)
	}
	parts := []result.Part{{Events: map[string]float64{"cycles": 1}}}
	w.add(parts)
	want := map[string]float64{"cycles": 1, result.DomainUser: 0.5, result.DomainSystem: 0, result.DomainGuest: 0.5, result.DomainThreads: 1, result.DomainRunning: 0.5, result.DomainWaiting: 0.25, result.DomainExecutions: 20,
		result.DomainWakeups: 12, result.DomainInjected: 100, result.DomainKicks: 2, result.DomainSent: 4096, result.DomainReceived: 0, result.DomainPackets: 3}
	if d := cmp.Diff(want, parts[0].Events); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// A run that ended before its window has no measures.
func TestDomainsWithoutWindow(t *testing.T) {
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	parts := []result.Part{{}}
	for _, w := range []*domains{nil, {host: h, envs: []lab.Environment{&domainEnv{}}}} {
		if w.add(parts); parts[0].Events != nil {
			t.Errorf("%v", parts)
		}
	}
}

// guestOfXen is an environment that is domain 1, on a network.
type guestOfXen struct {
	domainEnv
	tools xen.Tools
}

func (g *guestOfXen) Domain() (xen.Tools, int) { return g.tools, 1 }

// onNetwork is an environment with another around it.
type onNetwork struct{ lab.Environment }

func (o onNetwork) Unwrap() lab.Environment { return o.Environment }

// A guest of Xen has the measures of Xen's records, and the first domain's; none if records
// were lost.
func TestXenDomains(t *testing.T) {
	const guest = 1 << 16
	// At a second, an event and its words (xen/include/public/trace.h): for 10 s domain 1 runs 3 s, waits
	// 2 s, while domain 0 runs, runs 2 s, and is blocked.
	records := [][]uint32{
		{1, 0x21201, guest}, {2, 0x201104, 7}, {3, 0x10f001, 1}, {4, 0x21011, guest}, {4, 0x21101, 0}, {6, 0x21021, 0},
		{6, 0x21101, guest}, {8, 0x21021, guest}, {11, 0x22006, 0},
	}
	lost := append(slices.Clone(records), []uint32{10, 0x1f001, 5})
	for _, all := range [][][]uint32{records, lost} {
		var trace []byte
		for _, r := range all {
			trace = binary.LittleEndian.AppendUint32(trace, r[1]|uint32(len(r)-2)<<28|1<<31)
			trace = binary.LittleEndian.AppendUint64(trace, uint64(r[0])*1e9)
			for _, word := range r[2:] {
				trace = binary.LittleEndian.AppendUint32(trace, word)
			}
		}
		g := &guestOfXen{tools: xen.Tools{Run: func(_ context.Context, argv ...string) ([]byte, error) {
			if argv[0] == "xentrace" {
				return nil, os.WriteFile(argv[len(argv)-1], trace, 0o600)
			}
			return []byte("cpu_mhz : 1000.000\n"), nil
		}}}
		w := &domains{envs: []lab.Environment{onNetwork{g}}}
		if err := errors.Join(w.window(true), w.window(false)); err != nil {
			t.Fatal(err)
		}
		parts := make([]result.Part, 1)
		w.add(parts)
		got := map[string]float64{}
		for name, v := range parts[0].Events {
			if v != 0 {
				got[name] = v
			}
		}
		want := map[string]float64{result.DomainSpan: 10, result.DomainThreads: 1, result.DomainRunning: 5, result.DomainWaiting: 2, result.DomainExecutions: 2,
			result.DomainEntries: 1, result.DomainGrants: 1, result.DriverThreads: 1, result.DriverRunning: 2, result.DriverWaiting: 3}
		missing := ""
		if len(all) > len(records) {
			want, missing = map[string]float64{}, "xentrace lost 5 records"
		}
		if d := cmp.Diff(want, got); d != "" || parts[0].Missing[result.DomainRunning] != missing {
			t.Errorf("missing %q; -want +got:\n%s", parts[0].Missing, d)
		}
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}
}
