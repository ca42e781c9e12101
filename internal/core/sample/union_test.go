package sample

import "testing"

func TestUnion(t *testing.T) {
	a, b := SetOf(1, 3), SetOf(3, 200)
	if got := a.Union(b).String(); got != "1,3,200" {
		t.Error(got)
	}
	if a.String() != "1,3" || b.String() != "3,200" {
		t.Errorf("the operands changed: %s, %s", a, b)
	}
}
