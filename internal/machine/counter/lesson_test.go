package counter

import "testing"

// Opening costs several times what toggling does, per task, CPU and event. So a task's
// groups are opened once, when it is added. Between windows they are off, since they
// would slow down every context switch.
func TestWindowsToggleWhatIsOpen(t *testing.T) {
	f, p, _ := fakeCPI(t)
	opened := f.opened
	on := func() (n int) {
		for fd, e := range f.events {
			if e.leader == fd && e.on {
				n++
			}
		}
		return n
	}
	for range 3 {
		if n := on(); n != 0 {
			t.Errorf("%d groups count between windows", n)
		}
		start(t, p)
		if n := on(); n != 2 {
			t.Errorf("%d of 2 groups count in a window", n)
		}
		stopped(t, p, nil)
	}
	if f.opened != opened {
		t.Errorf("%d events were opened by three windows", f.opened-opened)
	}
}
