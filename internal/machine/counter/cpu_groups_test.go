package counter

import "testing"

// A group whose CPU was offline is found to be none any more; another can be opened.
func TestGroupOfACPUThatWasOffline(t *testing.T) {
	f := newFake(t)
	c := NewCPUGroups(Event{event: taskClock}, Event{event: taskClock})
	c.g.sys = f
	defer c.Close()
	for range 2 {
		if _, err := c.Open(1); err != nil || !c.Whole(1) {
			t.Fatal("it is not whole: ", err)
		}
		for _, e := range f.events {
			e.members = e.members[:min(len(e.members), 1)]
		}
		if c.Whole(1) {
			t.Error("it is whole without its members")
		}
		c.CloseCPU(1)
	}
}
