package agent

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

func (c *cgroup) IOPlace() (string, error) { return c.path, c.m.unlimited }

// ioMax is the guest's limit of a disk, created when it is first read; on v1 it is the
// limit of writes a second.
func (g *guest) ioMax(dev host.Device) string {
	file := "/cg" + g.path + "/io.max#" + dev.String()
	if g.m.blkio {
		file = "/cg" + g.path + "/blkio.throttle.write_iops_device#" + dev.String()
	}
	if g.m.values[file] == "" {
		g.m.values[file] = g.m.ioText(host.IOLimit{})
	}
	return file
}

// ioText is a limit in the format of that file.
func (m *machine) ioText(l host.IOLimit) string {
	if m.blkio {
		return fmt.Sprint(l.Wiops)
	}
	return l.String()
}

// IOLimit implements Machine.
func (m *machine) IOLimit(p string, dev host.Device) (host.IOLimit, error) {
	return m.disks[p], m.controllers
}

// pulled is a disk that the machine had.
var pulled = host.Device{Major: 7}

// IOWrites implements Machine.
func (m *machine) IOWrites(p string, dev host.Device, l host.IOLimit) (string, uint64, []host.Write, error) {
	for _, g := range m.guests {
		if dev == pulled {
			return "", 0, nil, host.ErrNoDevice
		}
		if g.path == p {
			file := g.ioMax(dev)
			return "/cg" + p, g.inode, []host.Write{{File: file, Old: m.values[file], New: m.ioText(l)}}, nil
		}
	}
	return "", 0, nil, host.ErrGone
}

// disks is a rig whose tasks use one disk: /batch/noisy-1 sends it *asked requests a
// second and slows /web/1 down by them.
func disks(t *testing.T, r *rig) (noisy *guest, asked *float64) {
	disk := host.Device{Major: 8}
	noisy, asked = r.add("/batch/noisy-1", 0.01), new(float64)
	r.add("/batch/quiet-1", 0.01)
	*asked = 1
	made := func() float64 {
		if r.values[noisy.ioMax(disk)] != r.ioText(host.IOLimit{}) {
			return min(20, *asked)
		}
		return *asked
	}
	n := 0
	r.add("/web/1", 0.01).cost = func() float64 {
		n++
		return 0.005 + 1e-4*float64(n%5) + made()/1e5
	}
	r.source = r.machine.source(sample.IO)
	r.source.shared = []host.Device{disk}
	r.source.change = func(path string, c *counter.Reading) {
		rate := 100.0
		if path == noisy.path {
			rate = made()
		}
		c.Extras.Set(sample.IOOps, rate*r.config.Sampling.Duration.Seconds())
		c.Reach = sample.SetOf(0)
	}
	for i := range r.config.Rules {
		if r.config.Rules[i].Class == sample.Batch { // they are not victims of io, but still suspects
			r.config.Rules[i].Signals = []string{"cpi"}
		}
	}
	r.start()
	r.pass(12*time.Minute - 30*time.Second)
	if all := r.incidents(); len(all) != 0 {
		t.Fatalf("incidents while all was quiet: %+v", all)
	}
	return noisy, asked
}

// An antagonist on a disk is limited there and not on the CPU, and released again. For
// v1, which does not limit everything, the audit log says what is not limited. A disk that both tasks
// have used and that is gone prevents nothing.
func TestADiskIsLimitedAndLetGo(t *testing.T) {
	limit := host.IOLimit{Rbps: 1 << 20, Wbps: 1 << 20, Riops: 20, Wiops: 20}
	for _, v1 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v1 %v", v1), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := newMachine(t)
				m.blkio = v1
				// With a rule that accuses at the third outlier: this test is about the
				// limit.
				r := newRig(t, m, t.TempDir(), "enforce.mode=on", "detect.rule=quell", "signals=io", "enforce.io_ops=20", "enforce.io_bytes=1048576")
				noisy, asked := disks(t, r)
				defer r.stop()
				file := noisy.ioMax(host.Device{Major: 8})
				r.source.shared = append([]host.Device{pulled}, r.source.shared...)
				*asked = 800
				r.pass(2*time.Minute + 40*time.Second)
				all := r.incidents()
				if len(all) != 1 || len(all[0].Rounds) != 1 || all[0].Rounds[0].Suspect.Name != "/batch/noisy-1" {
					t.Fatalf("incidents %+v", all)
				}
				want := plan.IORate{Ops: 20, Bytes: 1 << 20}
				if round := all[0].Rounds[0]; round.IO != want || round.Rate != 0 {
					t.Errorf("round %+v", round)
				}
				if got := r.values[file]; got != m.ioText(limit) {
					t.Errorf("the limit is %q", got)
				}
				if got := r.values[noisy.limit()]; got != "max" {
					t.Errorf("the CPU limit is %q", got)
				}
				if s := r.status(); len(s.Caps) != 1 || s.Caps[0].IO != want || s.Caps[0].Rate != 0 {
					t.Errorf("caps %+v", s.Caps)
				}
				if a := r.audit(); len(a) != 1 || strings.Contains(a[0].Why, "not later writeback by the kernel") != v1 {
					t.Errorf("audit %+v", a)
				}
				r.pass(5 * time.Minute)
				if got := r.values[file]; got != m.ioText(host.IOLimit{}) {
					t.Errorf("at the lease's end the limit is %q", got)
				}
				if inc := r.incidents()[0]; inc.Outcome != plan.TruePositive {
					t.Errorf("outcome %s, round %+v", inc.Outcome, inc.Rounds[0])
				}
			})
		})
	}
}

// If no limit can be set nothing is written, and the incident says why.
func TestADiskThatCannotBeLimitedIsSaid(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*rig)
		want   string
	}{
		{"no io controller", func(r *rig) { r.controllers = host.ErrNoLimit }, host.ErrNoLimit.Error()},
		{"no place of its own in blkio", func(r *rig) { r.unlimited = errors.New("its processes are at the top of blkio") }, "at the top of blkio"},
		{"a disk in common that is gone", func(r *rig) { r.source.shared = []host.Device{pulled} }, host.ErrNoDevice.Error()},
		{"no disk in common", func(r *rig) { r.source.shared = nil }, "no known disk is shared with the victim"},
		{"no source knows disks", func(r *rig) { r.agent.SharedDisks = nil }, "no known disk is shared with the victim"},
		{"limits of its own that are lower", func(r *rig) {
			r.machine.disks = map[string]host.IOLimit{"/batch/noisy-1": {Rbps: 1, Wbps: 1, Riops: 20, Wiops: 1}}
		}, "not lower than the present limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on", "signals=io")
				noisy, asked := disks(t, r)
				defer r.stop()
				c.change(r)
				*asked = 800
				r.pass(2*time.Minute + 40*time.Second)
				all := r.incidents()
				if len(all) != 1 || all[0].Outcome != plan.CapFailed || !strings.Contains(all[0].NotDone, c.want) {
					t.Errorf("incidents %+v; want a reason with %q", all, c.want)
				}
				if got := r.values[noisy.ioMax(host.Device{Major: 8})]; got != (host.IOLimit{}).String() {
					t.Errorf("the limit is %q", got)
				}
			})
		})
	}
}

// A limit of the task's own that is lower stays in force.
func TestTheLowerOfTwoLimitsHolds(t *testing.T) {
	for _, c := range []struct{ wish, has, want uint64 }{
		{20, 0, 20}, {20, 100, 20}, {20, 20, 0}, {20, 5, 0}, {0, 5, 0}, {0, 0, 0},
	} {
		if got := lower(c.wish, c.has); got != c.want {
			t.Errorf("%d wished for, %d there: %d, want %d", c.wish, c.has, got, c.want)
		}
	}
}

// A cgroup that was removed and made again at the same path is another task's, also before the agent
// has seen that: a cap of the former is not one of the latter. That holds also if the limit is in the
// hierarchy of the cpu controller, where the cgroup has another inode than the task.
func TestNoCapOfASuccessor(t *testing.T) {
	for _, moves := range []string{"", "/v1/noisy-1"} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, newMachine(t), t.TempDir())
			former, v1 := r.add("/batch/noisy-1", 0.5), r.add("/v1/noisy-1", 0)
			former.moves = moves
			r.start()
			defer r.stop()
			r.pass(90 * time.Second)
			former.remove()
			latter := r.add("/batch/noisy-1", 0.5)
			latter.moves = moves
			file := latter.limit()
			if moves != "" {
				file = v1.limit()
			}
			c := capping(command.Target{Task: "/batch/noisy-1"}, 0.25, "3m", "too loud")
			if why := r.refused(c, http.StatusConflict); !strings.Contains(why, host.ErrGone.Error()) || r.values[file] != "max" {
				t.Errorf("%q, the limit is %s", why, r.values[file])
			}
			r.pass(2 * time.Second)
			if r.do(c); r.values[file] != "0.25" {
				t.Errorf("once it is known the limit is %s", r.values[file])
			}
		})
	}
}

// No program has overruled a cap whose lease is over: quell-agent restore undoes it in place of an agent that hangs.
func TestALeaseThatIsOverIsNoReset(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		noisy := r.add("/batch/noisy-1", 0.5)
		r.start()
		defer r.stop()
		r.pass(time.Minute)
		r.do(capping(command.Target{Task: "/batch/noisy-1"}, 0.1, "90s", "too loud"))
		r.pass(90*time.Second - time.Millisecond)
		r.settle()
		if got := r.values[noisy.limit()]; got != "0.1" {
			t.Fatalf("within the lease the limit is %q", got)
		}
		r.values[noisy.limit()] = "max"
		r.pass(2 * time.Second)
		if s := r.status(); len(s.Caps) != 0 || len(s.Overruled) != 0 {
			t.Errorf("caps %+v, overruled %+v", s.Caps, s.Overruled)
		}
		if a := r.audit(); !strings.Contains(a[len(a)-1].Why, "the lease expired: restored") {
			t.Errorf("audit %+v", a[len(a)-1])
		}
	})
}
