//go:build linux

package counter

import "testing"

// Windows that follow each other at once cost no switching, miss nothing that
// runs between them, and take in tasks that came. (The fake fails a group that
// is switched to what it is.)
func TestLinger(t *testing.T) {
	f, p, inode := fakeCPI(t)
	ons := func() (n int) {
		for _, e := range f.events {
			if e.on {
				n++
			}
		}
		return n
	}
	start(t, p)
	p.Linger(true)
	f.run(inode, 0, tick{100, 100, [3]uint64{300, 100, 0}})
	if r := stopped(t, p, nil)[key(1)]; r.Cost != 3 {
		t.Errorf("the first window: cost %v, want 3", r.Cost)
	}
	before := ons()
	if before == 0 {
		t.Error("the groups were switched off for nothing")
	}
	f.run(inode, 0, tick{100, 100, [3]uint64{500, 100, 0}}) // of the next window
	dir := t.TempDir()
	if err := p.Add(Target{Key: key(2), PerfDir: dir}); err != nil {
		t.Fatal(err)
	}
	start(t, p)
	if n := ons(); n != 2*before {
		t.Errorf("%d groups are on with a second task, want %d", n, 2*before)
	}
	f.run(inode, 0, tick{100, 100, [3]uint64{500, 100, 0}})
	f.run(inodeOf(t, dir), 0, tick{100, 100, [3]uint64{700, 100, 0}})
	p.Linger(false)
	got := stopped(t, p, nil)
	if r := got[key(1)]; r.Cost != 5 {
		t.Errorf("the second window: cost %v, want 5", r.Cost)
	}
	if r := got[key(2)]; r.Cost != 7 {
		t.Errorf("the task that came: cost %v, want 7", r.Cost)
	}
	if n := ons(); n != 0 {
		t.Errorf("%d groups are still on", n)
	}

	// Removed while they linger: the task's groups go, in no window.
	start(t, p)
	p.Linger(true)
	stopped(t, p, nil)
	if _, ok := p.Remove(key(2), 0); ok {
		t.Error("a reading between windows")
	}
	start(t, p)
	p.Linger(false)
	stopped(t, p, nil)
}
