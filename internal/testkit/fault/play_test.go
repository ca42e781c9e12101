package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
)

const foreignQuota = "33333"

// point plays one point and checks the state at the end.
func (k *worker) point(p point) *result {
	k.r = &result{N: p.n, Scenario: p.scenario, Life: p.life, Back: p.back}
	err := k.fresh(&p)
	if err == nil {
		err = k.play(&p)
	}
	if err = errors.Join(err, k.clear(&p)); err != nil {
		k.r.Err = err.Error()
	}
	if k.r.bad() {
		k.r.Log = k.tail()
	}
	return k.r
}

func (k *worker) play(p *point) error {
	if p.scenario == fullAlive {
		if err := k.fill(4<<10 + p.rng.IntN(28<<10)); err != nil {
			return err
		}
	}
	live := func(target phase) error {
		hit, ok, err := k.kill(p, p.life, target, func(ctx context.Context) {
			if p.life == lifeAgent {
				var wg sync.WaitGroup
				if p.scenario == foreignAlive {
					wg.Go(func() { k.setForeignLimit(ctx) })
				}
				k.operate(ctx)
				wg.Wait()
			}
		})
		// On a disk without room it may not even start.
		if err == nil && !ok && p.scenario != fullAlive {
			err = errors.New(p.life + " exited without a kill")
		}
		if ok {
			k.r.Kills = append(k.r.Kills, hit)
		}
		return err
	}
	if err := live(p.target); err != nil {
		return err
	}
	if p.scenario == twice {
		if err := live(p.second); err != nil {
			return err
		}
	}
	if p.scenario == inRestore {
		hit, ok, err := k.kill(p, p.back, p.second, func(context.Context) {})
		if err != nil {
			return err
		}
		if ok {
			k.r.Restores = append(k.r.Restores, hit)
		}
	}
	at, err := k.task.get(k.h)
	if err != nil {
		return err
	}
	k.r.Capped = at != p.before
	k.others("at the kill")
	want, err := k.applyScenario(p, at)
	if err != nil {
		return err
	}
	if err := k.checkRestore(p, want); err != nil {
		return err
	}
	if p.onSmall() { // once more with a journal that can be written
		if err := errors.Join(k.mend(p), k.checkRestore(p, want)); err != nil {
			return err
		}
	}
	if v, err := enforce.ReadJournal(k.journal()); err == nil && len(v.Open) > 0 {
		k.r.Left = append(k.r.Left, fmt.Sprintf("%d changes are still open in the journal", len(v.Open)))
	}
	k.others("in the end")
	return nil
}

// applyScenario applies the scenario while no program runs, and returns the limit that
// is expected at the end; nil: no cgroup.
func (k *worker) applyScenario(p *point, at limit) (*limit, error) {
	want := p.before
	var err error
	switch p.scenario {
	case foreign:
		want = limit{foreignQuota, at.period}
		err = host.WriteFile(k.task.quotaFile(), foreignQuota)
	case foreignAlive:
		if at.quota == foreignQuota {
			want = at
		}
	case removed:
		return nil, k.task.remove()
	case remade:
		want = at // the worst case: with quell's own values
		err = errors.Join(k.task.remove(), k.task.again(at))
	case full:
		err = k.fill(0)
	case readOnly:
		err = unix.Mount("", k.small, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	case cut, flipped:
		err = k.damage(p)
	}
	return &want, err
}

// setForeignLimit sets a limit as another process would, some time after a cap is in force.
func (k *worker) setForeignLimit(ctx context.Context) {
	for c := api.NewClient(k.socket()); ctx.Err() == nil; <-time.After(5 * time.Millisecond) {
		if s, err := c.Status(ctx); err == nil && len(s.Caps) == 1 {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.taken = host.WriteFile(k.task.quotaFile(), foreignQuota) == nil
			return
		}
	}
}

// damage cuts some of the journal's last line off, or flips a bit of its last lines.
func (k *worker) damage(p *point) error {
	name := k.journal() + "/journal"
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(text) < 2 {
		return nil // it was killed before there was one
	}
	if err != nil {
		return err
	}
	last := len(text) - 1 - bytes.LastIndexByte(text[:len(text)-1], '\n')
	if p.scenario == cut {
		// Successive points cut each number of bytes in turn.
		return os.Truncate(name, int64(len(text)-1-(p.n/int(scenarios))%last))
	}
	i := len(text) - 1 - p.rng.IntN(min(len(text), 3*last))
	text[i] ^= 1 << p.rng.IntN(8)
	return os.WriteFile(name, text, 0o600)
}

// fill fills the disk except for some bytes.
func (k *worker) fill(but int) error {
	f, err := os.OpenFile(k.small+"/filler", os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if errors.Is(err, syscall.ENOSPC) {
		err = nil
	}
	if info, bad := f.Stat(); err == nil && bad == nil {
		err = f.Truncate(max(0, info.Size()-int64(but)))
	}
	return errors.Join(err, f.Close())
}

func (k *worker) mend(p *point) error {
	if p.scenario == readOnly {
		return unix.Mount("", k.small, "", unix.MS_REMOUNT, "")
	}
	return os.Remove(k.small + "/filler")
}

// checkRestore starts the program that restores and checks that it does so in time.
func (k *worker) checkRestore(p *point, want *limit) error {
	var deadline time.Time
	if v, err := enforce.ReadJournal(k.journal()); err == nil {
		for _, c := range v.Open {
			deadline = c.Until.Time()
		}
	}
	start := time.Now()
	if deadline.Before(start) || p.back != backOverdue {
		// All but the safety net undo at once regardless of the lease. They are
		// held to that, although they promise only the deadline.
		deadline = start
	}
	cmd := k.program(p.back)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.back, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var back time.Time // when the limit was right
	var fault error
	asked := start
	for running := true; ; <-time.After(2 * time.Millisecond) {
		right := k.restored(want)
		switch {
		case right && back.IsZero():
			back = time.Now()
		case !right:
			back = time.Time{}
		}
		select {
		case err := <-ended:
			running = false
			if err != nil && !p.onSmall() {
				fault = fmt.Errorf("%s: %w", p.back, err)
			}
		default:
		}
		late := time.Since(deadline) > k.bounds.patience
		if p.back == backOverdue && !running && asked.Before(deadline) && !late && fault == nil {
			asked, running = time.Now(), true
			cmd = k.program(p.back)
			if err := cmd.Start(); err != nil {
				return fmt.Errorf("start %s: %w", p.back, err)
			}
			go func() { ended <- cmd.Wait() }()
			<-time.After(20 * time.Millisecond)
			continue
		}
		if p.back == backStart && running && (right || late) && k.answers() {
			// The agent does not end by itself: ask it to.
			_ = cmd.Process.Signal(syscall.SIGTERM)
			running = false
			select {
			case err := <-ended:
				if err != nil && !p.onSmall() {
					fault = fmt.Errorf("%s: %w", p.back, err)
				}
			case <-time.After(hang):
				fault = errors.New("the agent does not exit")
				_ = cmd.Process.Kill()
				<-ended
			}
		}
		if !running {
			break
		}
		if time.Since(deadline) > k.bounds.patience+hang {
			_ = cmd.Process.Kill()
			<-ended
			fault = fmt.Errorf("%s does not exit", p.back)
			break
		}
	}
	switch {
	case !k.restored(want):
		k.judge(p, want)
	case back.Sub(deadline) > k.bounds.patience:
		k.r.Left = append(k.r.Left, fmt.Sprintf("the limits were restored only %.1f s after deadline and start", back.Sub(deadline).Seconds()))
	}
	k.r.Late = max(k.r.Late, back.Sub(deadline).Seconds())
	return fault
}

func (k *worker) answers() bool {
	_, err := api.NewClient(k.socket()).Status(context.Background())
	return err == nil
}

// restored reports whether the task's cgroup is as it must be.
func (k *worker) restored(want *limit) bool {
	if want == nil {
		return !k.task.exists()
	}
	got, err := k.task.get(k.h)
	return err == nil && got == *want
}

// judge records what is wrong: quell's value left, or a wrong value set.
func (k *worker) judge(p *point, want *limit) {
	got, err := k.task.get(k.h)
	if want == nil {
		k.r.Wrong = append(k.r.Wrong, "the removed cgroup exists again")
		return
	}
	text := fmt.Sprintf("%s %v: the limit is %v (%v), want %v", p.scenario, p.back, got, err, *want)
	if *want == p.before && got.quota != foreignQuota {
		k.r.Left = append(k.r.Left, text)
	} else {
		k.r.Wrong = append(k.r.Wrong, text)
	}
}

// others checks that no task was capped that may not be.
func (k *worker) others(when string) {
	for _, c := range []*cgroup{k.web, k.kept} {
		if got, err := c.get(k.h); err != nil || got != untouched {
			k.r.Wrong = append(k.r.Wrong, fmt.Sprintf("%s: the limit of %s is %v, %v", when, c.path, got, err))
		}
	}
}
