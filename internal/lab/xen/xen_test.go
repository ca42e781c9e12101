package xen

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

func open(t testing.TB, name string) io.Reader {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if !strings.HasSuffix(name, ".gz") {
		return f
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

var recordings = []string{"credit-smp1", "credit2-smp2"}

// Decode agrees with xenalyze, Xen's own reader, on the beginning of the same trace:
// the changes of state in order, and the number of each call.
func TestDecodeAgreesWithXenalyze(t *testing.T) {
	for _, name := range recordings {
		t.Run(name, func(t *testing.T) {
			var want []string
			calls := 0
			for lines := bufio.NewScanner(open(t, name+"/xenalyze-dump-head.txt")); lines.Scan(); {
				_, rest, ok := strings.Cut(lines.Text(), " runstate_change ")
				if ok {
					want = append(want, strings.TrimSpace(rest))
				}
				if strings.Contains(lines.Text(), " hypercall ") && len(want) < 3 {
					calls++
				}
			}
			if len(want) < 4 || calls == 0 {
				t.Fatalf("the dump has %d changes and %d calls", len(want), calls)
			}
			states := [...]string{"running", "runnable", "blocked", "offline"}
			var got []string
			// A trace of several CPUs is in order for each of them only, and xenalyze
			// sorts it. There the changes are compared as a set.
			err := Decode(open(t, name+"/xentrace-head.bin.gz"), func(r *Record) error {
				if r.Event&runstateMask == eventRunstate {
					got = append(got, fmt.Sprintf("d%dv%d %s->%s", r.Extra[0]>>16, r.Extra[0]&0xffff, states[r.Event>>8&3], states[r.Event>>4&3]))
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if name == "credit-smp1" {
				if len(got) < len(want) || strings.Join(got[:len(want)], "\n") != strings.Join(want, "\n") {
					t.Errorf("got %v, want %v first", got[:min(len(got), len(want))], want)
				}
				return
			}
			in := map[string]int{}
			for _, g := range got {
				in[g]++
			}
			for _, w := range want {
				if in[w]--; in[w] < 0 {
					t.Errorf("%s is not in the trace", w)
				}
			}
		})
	}
}

func TestMeasure(t *testing.T) {
	for _, name := range recordings {
		t.Run(name, func(t *testing.T) {
			hz, err := ParseHertz(open(t, name+"/xl-info.txt"))
			if err != nil {
				t.Fatal(err)
			}
			all, err := Measure(open(t, name+"/xentrace-head.bin.gz"), hz)
			if err != nil {
				t.Fatal(err)
			}
			if len(all.Domains) != 3 || all.Span <= 0 || all.Switches == 0 {
				t.Fatalf("%+v, want 3 domains", all)
			}
			executions := 0
			for i, d := range all.Domains {
				executions += d.Executions
				if d.ID != i || d.Executions == 0 || d.Events == 0 || len(d.VCPUs) == 0 {
					t.Errorf("%+v", d)
				}
				for n, v := range append(d.VCPUs, d.Shares) {
					if math.Abs(v.Sum()-1) > 0.01 {
						t.Errorf("domain %d, virtual CPU %d: the shares add up to %v", d.ID, n, v.Sum())
					}
				}
				if d.EventChannel >= d.Events || (d.ID == 0) != (d.EventChannel > 0 && d.Grants == 0) {
					t.Errorf("domain %d: %d of %d events are event channels', %d grants", d.ID, d.EventChannel, d.Events, d.Grants)
				}
			}
			if all.Switches < executions {
				t.Errorf("%d switches, %d executions", all.Switches, executions)
			}
		})
	}
}

// trace makes records of one CPU.
func trace(records ...[]uint32) []byte {
	var b []byte
	word := func(w ...uint32) {
		for _, v := range w {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	word(eventCPUChange|2<<28, 3, 0)
	for _, r := range records { // event, TSC, extras
		word(r[0] | uint32(len(r)-2)<<28 | 1<<31)
		word(r[1], 0)
		word(r[2:]...)
	}
	return b
}

// A constructed trace with known shares: domain 1 runs for 50 of 200 cycles, waits for
// 30, is blocked for 120, and then its CPU is idle.
func TestMeasureOfAMadeTrace(t *testing.T) {
	const one = 1 << 16
	b := trace(
		[]uint32{0x21201, 100, one},     // blocked to running
		[]uint32{0x20110d, 110, 32},     // event channel
		[]uint32{0x201104, 115, 7, 7},   // fault
		[]uint32{eventGrantMap, 118, 1}, // a page of its own is mapped
		[]uint32{0x21011, 130, one},     // preempted
		[]uint32{0x20110d, 140, 32},     // no domain runs: not counted
		[]uint32{0x21101, 160, one},     // runs again
		[]uint32{0x21021, 180, one},     // blocks
		[]uint32{0x21101, 180, idleDomain << 16},
		[]uint32{eventLost, 190, 5, 0, 0, 0},
		[]uint32{0x22006, 300, 0}, // the end
	)
	all, err := Measure(bytes.NewReader(b), 1e9)
	if err != nil || len(all.Domains) != 1 {
		t.Fatal(all, err)
	}
	d := all.Domain(1)
	if d.Running != 0.25 || d.Runnable != 0.15 || d.Blocked != 0.6 || d.Executions != 2 || d.Preemptions != 1 || len(d.VCPUs) != 1 ||
		d.Events != 2 || d.EventChannel != 1 || d.Grants != 1 || d.GrantsPerExecution() != 0.5 {
		t.Errorf("%+v", d)
	}
	if all.Span != 200 || all.PerSecond(d.Events) != 1e7 || all.Switches != 3 || all.Lost != 5 || all.Domain(2) != nil {
		t.Errorf("%+v", all)
	}
	if _, err := Measure(bytes.NewReader(b), 0); err == nil {
		t.Error("a machine without cycles")
	}
}

func TestTables(t *testing.T) {
	for _, name := range recordings {
		guests, err := ParseList(open(t, name+"/xl-list-l.json"))
		if want := []Guest{{0, "Domain-0"}, {1, "g1"}, {2, "g2"}}; err != nil || !slices.Equal(guests, want) {
			t.Errorf("%+v, %v; want %+v", guests, err, want)
		}
	}
	pinned, err := ParseVCPUs(open(t, "credit2-smp2/xl-vcpu-list.pinned.txt"))
	if want := []VCPU{{0, "r", 93.2, "0"}, {1, "b", 91.4, "all"}, {0, "b", 36.8, "0"}, {0, "b", 24.4, "1"}}; err != nil || !slices.Equal(pinned, want) {
		t.Errorf("%+v, %v; want %+v", pinned, err, want)
	}
}

// Damaged input is an error with its position, and never a panic.
func TestDamagedTables(t *testing.T) {
	vcpus := func(r io.Reader) error { _, err := ParseVCPUs(r); return err }
	for _, c := range []struct {
		text, want string
		parse      func(io.Reader) error
	}{
		{"Name ID VCPU\ng1 1 0", "line 2: 3 columns", vcpus},
		{"g1 1 0", "no header line", vcpus},
		{"Name ID\ng1 1 one 0 r-- 1.0 all / all", "line 2", vcpus},
		{"Name ID\ng1 1 0 0 r-- 1.0 all all all", "want HARD / SOFT", vcpus},
		{"{", "read xl list", func(r io.Reader) error { _, err := ParseList(r); return err }},
		{"host : x", "no cpu_mhz", func(r io.Reader) error { _, err := ParseHertz(r); return err }},
	} {
		if err := c.parse(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
}

func FuzzMeasure(f *testing.F) {
	f.Add(trace([]uint32{0x21201, 100, 1 << 16}, []uint32{0x21021, 180, 1 << 16}))
	head, err := io.ReadAll(io.LimitReader(open(f, "credit-smp1/xentrace-head.bin.gz"), 4096))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(head)
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := Measure(bytes.NewReader(b), 1e9)
		if err != nil {
			return
		}
		for _, d := range all.Domains {
			for _, v := range d.VCPUs {
				if v.Sum() > 1+1e-6 {
					t.Errorf("shares of %v", v.Sum())
				}
			}
		}
	})
}
