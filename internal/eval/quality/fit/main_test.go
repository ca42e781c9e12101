package main

import (
	"reflect"
	"testing"
)

// Machines are simulated in parallel: their findings come in any order, and those of one in order.
func TestFindingsHaveAnOrder(t *testing.T) {
	a := findings{all: []finding{{machine: "m", at: 1}, {machine: "n", at: 1}, {machine: "m", at: 2}, {machine: "n", at: 2}}}
	b := findings{all: []finding{{machine: "n", at: 1}, {machine: "n", at: 2}, {machine: "m", at: 1}, {machine: "m", at: 2}}}
	a.order()
	b.order()
	if !reflect.DeepEqual(a.all, b.all) || a.all[1].machine != "m" || a.all[1].at != 2 {
		t.Errorf("%+v and %+v", a.all, b.all)
	}
}

// A machine is in one half whatever innocents were added to it and wherever the file is: the
// half that judges has no victim and no antagonist of the half of the fit, and a victim is counted as
// one, with whatever innocents.
func TestAMachineIsInOneHalf(t *testing.T) {
	halves := map[bool]int{}
	for _, recorded := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		f := finding{source: "recording", decided: true, recorded: recorded, machine: "nginx-5s.csv " + recorded, victim: "/nginx"}
		want := fitted(&f)
		halves[want]++
		for _, file := range []string{"nginx-5s.csv", "/tmp/nginx-5s-kepler-10.csv", "nginx-5s-rezolus-5.csv", "x/nginx-5s.csv"} {
			f.source, f.machine = "innocents", file+" "+recorded
			if fitted(&f) != want || f.group() != recorded+" /nginx" {
				t.Errorf("%s is in another half in %s, or its victim another one: %q", recorded, file, f.group())
			}
		}
	}
	if halves[true] == 0 || halves[false] == 0 {
		t.Errorf("halves %v", halves)
	}
	for scene, want := range map[string]bool{"tuning-01": true, "test-01": false} {
		f := finding{source: "corpus", decided: true, recorded: scene, machine: "/home/tuning/testdata/corpus/" + scene + ".csv.gz " + scene}
		if fitted(&f) != want {
			t.Errorf("%s of the corpus: for the fit %t, want %t", scene, !want, want)
		}
	}
	if fitted(&finding{source: "corpus", recorded: "tuning-01"}) {
		t.Error("a finding that statistics did not decide is fitted")
	}
}
