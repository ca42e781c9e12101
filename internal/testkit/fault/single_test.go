package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
)

// Single faults: one system call of the shipped agent, on the way of a cap, fails, is made and
// fails, writes half, or takes long, or the agent is killed there. A living agent must undo the
// cap at most bounds.lateness after its lease; if the agent has died, the timer's next run must.

// site returns the name of a call on the way of a cap, such as "fsync journal": what is called,
// and on what. It is "" for a call that concerns neither the journal nor a limit.
func (w watched) site(c call) string {
	opened := func() string {
		name, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.pid, int32(c.args[0])))
		return name
	}
	named := func() string {
		text, _, _ := strings.Cut(string(c.bytes(c.args[1], 4096)), "\x00")
		if !filepath.IsAbs(text) && int32(c.args[0]) != unix.AT_FDCWD {
			text = filepath.Join(opened(), text)
		}
		return text
	}
	switch c.nr {
	case unix.SYS_OPENAT, unix.SYS_OPENAT2:
		return w.name("open", named())
	case unix.SYS_NEWFSTATAT:
		return w.name("stat", named())
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		return w.name("rename", named())
	case unix.SYS_UNLINKAT:
		return w.name("unlink", named())
	case unix.SYS_READ, unix.SYS_PREAD64:
		return w.name("read", opened())
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		return w.name("fsync", opened())
	case unix.SYS_FTRUNCATE:
		return w.name("truncate", opened())
	case unix.SYS_WRITE, unix.SYS_PWRITE64:
		name := w.name("write", opened())
		if name == "write journal" {
			if kind := recordKind.FindSubmatch(c.bytes(c.args[1], c.args[2])); kind != nil {
				name += " " + string(kind[1])
			}
		}
		return name
	}
	return ""
}

func (w watched) name(what, file string) string {
	base := filepath.Base(file)
	switch {
	case file == w.journal:
		return what + " journal's directory"
	case filepath.Dir(file) == w.journal:
		return what + " " + base
	case file == w.cgroup:
		return what + " cgroup"
	case filepath.Dir(file) == w.cgroup && strings.HasPrefix(base, "cpu.cfs_"):
		return what + " " + base
	}
	return ""
}

// errnosOf are the errors that a call of a site may have.
func errnosOf(site string) []unix.Errno {
	switch what, _, _ := strings.Cut(site, " "); what {
	case "open":
		return []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO, unix.EACCES, unix.ENOSPC}
	case "write":
		return []unix.Errno{unix.EIO, unix.ENOSPC, unix.EBUSY, unix.EINVAL, unix.ENOMEM, unix.EDQUOT}
	case "stat", "read":
		return []unix.Errno{unix.EIO, unix.ENOMEM, unix.EACCES}
	}
	return []unix.Errno{unix.EIO, unix.ENOSPC, unix.EROFS}
}

// randomAction draws what happens to a call of a site.
func randomAction(rng *rand.Rand, site string) (do action, text string) {
	all := errnosOf(site)
	errno := all[rng.IntN(len(all))]
	switch n := rng.IntN(10); {
	case n < 5:
		return action{errno: errno}, errno.Error()
	case n < 6 && !strings.HasPrefix(site, "open"): // the descriptor would be lost
		return action{errno: errno, after: true}, errno.Error() + " after the effect"
	case n < 7 && strings.HasPrefix(site, "write journal"):
		return action{short: true}, "half is written"
	case n < 9:
		d := time.Duration(50+rng.IntN(1500)) * time.Millisecond
		return action{delay: d}, "takes " + d.String()
	}
	return action{kill: true}, "killed"
}

// faulter plays points of single faults with an agent that lives from one to the next if it can.
type faulter struct {
	*worker
	// How often each site is reached without a fault: in the start that follows a kill with a
	// cap in force (true), and in the life of a cap (false).
	sites map[bool]map[string]int
	agent *traced

	mu   sync.Mutex
	seen map[string]int // calls of each site since the fault was armed
	site string         // where the next fault is, "" for none
	nth  int            // calls there before
	do   action
	hit  bool
}

// traced is an agent that is traced by a goroutine of its own.
type traced struct {
	pid   int
	ended chan struct{}
	err   error
}

func (k *worker) injectFaults(ctx context.Context, seed uint64, numbers []int, out *json.Encoder) (err error) {
	f := &faulter{worker: k, seen: map[string]int{}}
	k.state = filepath.Join(k.dir, "state")
	if err := os.MkdirAll(k.state, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	if err := f.survey(); err != nil {
		return fmt.Errorf("a life without a fault: %w", err)
	}
	for _, n := range numbers {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := out.Encode(f.point(n, rand.New(rand.NewPCG(seed, uint64(n))))); err != nil {
			return err
		}
	}
	return nil
}

// at is called before each call of the agent.
func (f *faulter) at(c call) action {
	name := watched{f.journal(), f.task.dir}.site(c)
	if name == "" {
		return action{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[name]++
	if f.hit || name != f.site {
		return action{}
	}
	if f.nth--; f.nth >= 0 {
		return action{}
	}
	f.hit = true
	return f.do
}

// arm sets the next fault; "" for none. It returns how often each site was reached since.
func (f *faulter) arm(site string, nth int, do action) map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.seen
	f.seen, f.site, f.nth, f.do, f.hit = map[string]int{}, site, nth, do, false
	return was
}

// reached returns how often a site was reached since arm.
func (f *faulter) reached(site string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[site]
}

// start starts an agent, and returns when it answers or has ended.
func (f *faulter) start() error {
	started := make(chan int, 1)
	a := &traced{ended: make(chan struct{})}
	go func() {
		defer close(a.ended)
		_, a.err = trace(f.program(lifeAgent), func(pid int) { started <- pid }, f.at)
	}()
	select {
	case a.pid = <-started:
	case <-a.ended:
		return a.err
	}
	f.agent = a
	for end := time.Now().Add(2 * hang); !f.answers(); <-time.After(5 * time.Millisecond) {
		if !f.lives() {
			return nil
		}
		if time.Now().After(end) {
			return errors.New("the agent does not answer")
		}
	}
	return nil
}

func (f *faulter) lives() bool {
	if f.agent == nil {
		return false
	}
	select {
	case <-f.agent.ended:
		return false
	default:
		return true
	}
}

// kill ends the agent as kill -9 does.
func (f *faulter) kill() {
	if f.lives() {
		_ = unix.Kill(f.agent.pid, unix.SIGKILL)
		<-f.agent.ended
	}
}

// stop ends the agent in order.
func (f *faulter) stop() error {
	if !f.lives() {
		return nil
	}
	_ = unix.Kill(f.agent.pid, unix.SIGTERM)
	select {
	case <-f.agent.ended:
		return f.agent.err
	case <-time.After(hang):
		f.kill()
		return errors.New("the agent does not exit")
	}
}

// cap asks for a cap with the shortest lease, as soon as the agent follows the task, which may take
// as long as wait, and returns the latest end of that.
func (f *faulter) cap(wait time.Duration) (until time.Time, err error) {
	for end := time.Now().Add(wait); ; <-time.After(5 * time.Millisecond) {
		_, err = api.NewClient(f.socket()).Command(context.Background(), command.CapTask(f.task.path, 0.1, agentLease, "fault injection"))
		var refused *api.RefusedError
		if now := time.Now(); !errors.As(err, &refused) || refused.Status != http.StatusNotFound || now.After(end) {
			return now.Add(agentLease), err
		}
	}
}

// killCapped kills an agent without a fault while a cap is in force. It returns the end of the lease.
func (f *faulter) killCapped() (until time.Time, err error) {
	for {
		if until, err = f.cap(hang); err != nil {
			return until, fmt.Errorf("cap without a fault: %w", err)
		}
		if f.kill(); !f.restored(original()) {
			return until, nil
		}
		if err := f.start(); err != nil { // it was faster: again
			return until, err
		}
	}
}

// original is the limit of the task without a cap.
func original() *limit { return &limit{"-1", "100000"} }

// survey lists the sites, with an agent that is killed with a cap in force and one that starts
// then, sets a cap and undoes it.
func (f *faulter) survey() error {
	if err := errors.Join(f.task.again(*original()), f.start()); err != nil {
		return err
	}
	if _, err := f.killCapped(); err != nil {
		return err
	}
	f.arm("", 0, action{})
	if err := f.start(); err != nil {
		return err
	}
	f.sites = map[bool]map[string]int{true: f.arm("", 0, action{})}
	until, err := f.cap(hang)
	if err != nil {
		return err
	}
	if back, _ := f.await(until, 0); back.IsZero() {
		return errors.New("the cap is not undone")
	}
	// The journal says so a moment later.
	for end := time.Now().Add(hang); f.reached("write journal undone") == 0 && time.Now().Before(end); <-time.After(time.Millisecond) {
	}
	f.sites[false] = f.arm("", 0, action{})
	for restart, must := range map[bool][]string{
		true:  {"open journal.new", "write journal.new", "fsync journal.new", "rename journal.new", "fsync journal's directory", "write cpu.cfs_quota_us", "write journal undone"},
		false: {"open cpu.cfs_quota_us", "write journal intend", "fsync journal", "write cpu.cfs_quota_us", "write journal applied", "write journal undone", "stat cgroup"},
	} {
		for _, site := range must {
			if f.sites[restart][site] == 0 {
				return fmt.Errorf("no call %q (in a start: %v); there are %v", site, restart, f.sites[restart])
			}
		}
	}
	return nil
}

// await waits for the original limit after the end of a lease, and as long as it may be late.
// back is when it was seen there last, zero if it was not; died is when the agent ended.
func (f *faulter) await(until time.Time, delay time.Duration) (back time.Time, died bool) {
	for ; ; <-time.After(2 * time.Millisecond) {
		right := f.restored(original())
		switch now := time.Now(); {
		case !right:
			back = time.Time{}
		case back.IsZero():
			back = now
		}
		if died = !f.lives(); died || time.Now().After(until.Add(f.bounds.lateness+delay)) || !back.IsZero() && time.Now().After(until) {
			return back, died
		}
	}
}

// point plays one fault.
func (f *faulter) point(n int, rng *rand.Rand) *result {
	f.r = &result{N: n, Life: lifeAgent}
	if err := f.log.Truncate(0); err != nil {
		f.r.Err = err.Error()
		return f.r
	}
	restart := n%4 == 0
	all := slices.Sorted(maps.Keys(f.sites[restart]))
	site := all[rng.IntN(len(all))]
	do, text := randomAction(rng, site)
	f.r.Fault = text
	if err := f.play(site, rng.IntN(f.sites[restart][site]), do, restart); err != nil {
		f.r.Err = err.Error()
	}
	f.others("in the end")
	if f.r.bad() {
		f.r.Log = f.tail()
		f.kill() // the next point begins anew
		_ = f.task.set(*original())
		_ = os.RemoveAll(f.journal())
	}
	return f.r
}

// play has the fault in a life with one cap or, with restart, in the start of the next agent
// after a kill with a cap in force. nth is how many calls of the site are made before.
func (f *faulter) play(site string, nth int, do action, restart bool) error {
	f.arm("", 0, action{})
	if restart {
		f.kill() // the agent may still be ending, or undoing, because of the fault before
	}
	if !f.lives() {
		if err := errors.Join(f.task.again(*original()), f.start()); err != nil {
			return err
		}
		if !f.lives() {
			return errors.New("the agent ended by itself, without a fault")
		}
	}
	var until time.Time
	if restart {
		var err error
		if until, err = f.killCapped(); err != nil {
			return err
		}
		f.arm(site, nth, do)
		if err := f.start(); err != nil {
			return err
		}
		if now := time.Now(); until.Before(now) {
			until = now
		}
	} else {
		f.arm(site, nth, do)
		var err error
		if until, err = f.cap(5 * time.Second); err != nil {
			until = time.Now() // refused, or the fault hides the task: then there is no cap
		}
	}
	back, died := f.await(until, do.delay)
	f.mu.Lock()
	if f.hit {
		f.r.Site = site
	}
	f.mu.Unlock()
	if died {
		f.r.Died = true
		return f.timer(time.Now().Add(agentLease))
	}
	if back.IsZero() {
		f.r.Left = append(f.r.Left, fmt.Sprintf("%s, %s: in force %s after the lease", site, f.r.Fault, f.bounds.lateness+do.delay))
		return nil
	}
	f.r.Late = max(0, back.Sub(until).Seconds())
	return nil
}

// timer is the first run of quell-restore.timer after a time at which every lease has expired:
// when it ends, no limit may be left.
func (f *faulter) timer(after time.Time) error {
	<-time.After(time.Until(after))
	begun := time.Now()
	if err := f.program(backOverdue).Run(); err != nil {
		return fmt.Errorf("%s: %w", backOverdue, err)
	}
	if !f.restored(original()) {
		got, err := f.task.get(f.h)
		f.r.Left = append(f.r.Left, fmt.Sprintf("after the agent died and the timer ran, the limit is %v, %v", got, err))
	}
	f.r.Late = time.Since(begun).Seconds()
	return nil
}
