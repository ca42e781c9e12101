package host

import "testing"

// apply makes the writes, each of which must find its old value.
func apply(t testing.TB, h *Host, w []Write) {
	t.Helper()
	for _, w := range w {
		if old, err := h.ReadValue(w.File); err != nil || old != w.Old {
			t.Fatalf("%s holds %q (%v), the write expects %q", w.File, old, err, w.Old)
		}
		if err := h.WriteValue(w.File, w.New); err != nil {
			t.Fatal(err)
		}
	}
}

// undo reverts the writes in reverse order.
func undo(t testing.TB, h *Host, w []Write) {
	t.Helper()
	for i := len(w) - 1; i >= 0; i-- {
		if err := h.WriteValue(w[i].File, w[i].Old); err != nil {
			t.Fatal(err)
		}
	}
}
