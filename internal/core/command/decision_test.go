package command_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
)

const minute = sample.Millis(60_000)

// decide returns a decision of a command at a minute.
func decide(id string, at sample.Millis, c command.Command) command.Decision {
	c.Why = "r"
	return command.Decide(id, "anna", at*minute, c)
}

func mode(m string) command.Command {
	return command.Command{Enforcement: &command.Enforcement{Mode: m}}
}

func capping(job string) command.Command {
	return command.Command{Cap: &command.Cap{Target: command.Target{Job: job}, Terms: command.Terms{Rate: 0.5, For: command.Duration(time.Hour)}}}
}

func ids(list []command.Decision) string {
	var all []string
	for _, d := range list {
		all = append(all, d.ID)
	}
	return strings.Join(all, " ")
}

// What a new decision takes the place of.
func TestAdd(t *testing.T) {
	web, batch := &command.Target{Job: "web"}, &command.Target{Class: "batch"}
	until := func(c command.Command, hours int) command.Command {
		c.For = command.Duration(time.Duration(hours) * time.Hour)
		return c
	}
	for _, c := range []struct {
		name string
		add  []command.Command
		want string
	}{
		{"a later mode holds", []command.Command{mode("on"), mode("off")}, "1"},
		{"a mode for a time", []command.Command{mode("on"), until(mode("off"), 2)}, "0 1"},
		{"a mode for a longer time", []command.Command{until(mode("on"), 1), until(mode("off"), 2)}, "1"},
		{"a mode after one for a time", []command.Command{mode("on"), until(mode("off"), 2), mode("advise")}, "2"},
		{"a reset of a mode for a time", []command.Command{mode("on"), until(mode("off"), 2), {Reset: &command.Reset{Enforcement: true}}}, ""},
		{"the end of a protection for a time", []command.Command{{Protect: web}, until(command.Command{Unprotect: web}, 1)}, "0 1"},
		{"protections of different targets", []command.Command{{Protect: web}, {Unprotect: batch}}, "0 1"},
		{"the end of a protection", []command.Command{{Protect: web}, {Unprotect: web}}, "1"},
		{"a cap at another rate", []command.Command{capping("web"), capping("web"), capping("db")}, "1 2"},
		{"an uncap of a job", []command.Command{capping("web"), capping("db"), {Uncap: web}}, "1 2"},
		{"an uncap of all", []command.Command{capping("web"), capping("db"), {Uncap: web}, {Uncap: &command.Target{All: true}}}, "3"},
		{"a cap after an uncap", []command.Command{{Uncap: web}, capping("web")}, "0 1"},
		{"a pardon twice", []command.Command{{Pardon: &command.Pardon{Job: "web"}}, {Pardon: &command.Pardon{Job: "db"}}, {Pardon: &command.Pardon{Job: "web"}}}, "1 2"},
		{"a reset of the mode", []command.Command{mode("on"), {Protect: web}, {Reset: &command.Reset{Enforcement: true}}}, "1"},
		{"a reset of a protection", []command.Command{mode("on"), {Unprotect: web}, {Protect: batch}, {Reset: &command.Reset{Protect: web}}}, "0 2"},
		{"a reset of a decision", []command.Command{mode("on"), capping("web"), {Reset: &command.Reset{Decision: "1"}}}, "0"},
	} {
		var list []command.Decision
		for i, one := range c.add {
			before := slices.Clone(list)
			next := command.Add(list, decide(fmt.Sprint(i), sample.Millis(i), one))
			if ids(list) != ids(before) {
				t.Errorf("%s: Add changed its argument", c.name)
			}
			list = next
		}
		if got := ids(list); got != c.want {
			t.Errorf("%s: %q stand, want %q", c.name, got, c.want)
		}
	}
}

// Every cap has an end at most a day after it was decided, whichever way it came; others have
// one if it was asked for.
func TestEnds(t *testing.T) {
	lasting := mode("on")
	lasting.For = command.Duration(2 * time.Hour)
	for _, c := range []struct {
		command.Command
		ends time.Duration
	}{{capping("web"), time.Hour}, {mode("on"), 0}, {lasting, 2 * time.Hour}, {command.Command{Uncap: &command.Target{All: true}}, 24 * time.Hour},
		{command.Command{Pardon: &command.Pardon{Job: "web"}}, 30 * 24 * time.Hour}} {
		d := decide("a", 10, c.Command)
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", d.Command.String(), err)
		}
		if got := d.Until.Sub(d.At); c.ends != 0 && got != c.ends || c.ends == 0 && d.Until != 0 {
			t.Errorf("%s ends after %s, want %s", d.Command.String(), got, c.ends)
		}
		if d.Stands(d.At-minute) != true || c.ends != 0 && d.Stands(d.Until) {
			t.Errorf("%s: stands at its end", d.Command.String())
		}
	}
	for name, spoil := range map[string]func(*command.Decision){
		"no end":             func(d *command.Decision) { d.Until = 0 },
		"a year":             func(d *command.Decision) { d.Until = d.At.Add(365 * 24 * time.Hour) },
		"an end before it":   func(d *command.Decision) { d.Until = d.At - 1 },
		"no operator":        func(d *command.Decision) { d.Who = " " },
		"no reason":          func(d *command.Decision) { d.Why = "" },
		"no ID":              func(d *command.Decision) { d.ID = "" },
		"no rate":            func(d *command.Decision) { d.Cap.Rate = 0 },
		"two kinds":          func(d *command.Decision) { d.Uncap = &command.Target{All: true} },
		"a reset that stays": func(d *command.Decision) { d.Cap, d.Reset = nil, &command.Reset{Enforcement: true} },
	} {
		d := decide("a", 10, capping("web"))
		if spoil(&d); d.Validate() == nil {
			t.Errorf("%s: valid", name)
		}
	}
}

// The newest statement about the mode holds, and the most specific about a task, until they end.
func TestWhichHolds(t *testing.T) {
	task := &sample.Task{Name: "/batch/job-1", Job: "job", Class: sample.Batch}
	short := mode("off")
	short.For = command.Duration(5 * time.Minute)
	list := []command.Decision{decide("on", 10, mode("on")), decide("advise", 5, mode("advise")), decide("off", 20, short),
		decide("all", 30, command.Command{Unprotect: &command.Target{All: true}}), decide("job", 10, command.Command{Protect: &command.Target{Job: "job"}}),
		decide("job again", 10, command.Command{Unprotect: &command.Target{Job: "job"}}), decide("other", 40, command.Command{Protect: &command.Target{Job: "other"}})}
	for at, want := range map[sample.Millis]string{20: "off", 24: "off", 25: "on"} {
		if d := command.Newest(list, "m", at*minute); d == nil || d.ID != want {
			t.Errorf("at %d: %v, want %s", at, d, want)
		}
	}
	if d := command.Protection(list, task, "m", 50*minute); d == nil || d.ID != "job again" {
		t.Errorf("%+v", d)
	}
	if d := command.Newest(nil, "m", 0); d != nil {
		t.Errorf("%+v of nothing", d)
	}
}

// A roll-out reaches one machine, then 1 %, then all, and what held before holds on the others.
func TestRollout(t *testing.T) {
	var machines []string
	for i := range 1000 {
		machines = append(machines, fmt.Sprintf("node-%d", i))
	}
	reached := func(list []command.Decision, mode string) (n []string) {
		for _, m := range machines {
			if d := command.Newest(list, m, 100*minute); d != nil && d.Enforcement.Mode == mode {
				n = append(n, m)
			}
		}
		return n
	}
	list := command.Add(nil, decide("before", 1, mode("advise")))
	d := decide("rollout", 2, mode("on"))
	first := reached(command.Add(list, d.Begin(0, machines, command.Duration(time.Hour), 2*minute)), "on")
	d = d.Begin(0, machines, command.Duration(time.Hour), 2*minute)
	list = command.Add(list, d)
	if got := reached(list, "on"); len(got) != 1 || !slices.Equal(got, first) || ids(list) != "before rollout" {
		t.Fatalf("%q first, of %s", got, ids(list))
	}
	d = d.Begin(1, machines, command.Duration(time.Hour), 3*minute)
	list = command.Add(list, d)
	if got := reached(list, "on"); len(got) != 10 || !slices.Contains(got, first[0]) || len(reached(list, "advise")) != 990 {
		t.Errorf("1 %%: %q", got)
	}
	stopped := *d.Rollout
	stopped.Stopped = "caps did not help"
	bad := d
	bad.Rollout = &stopped
	if got := reached(command.Add(list, bad), "advise"); len(got) != 1000 {
		t.Errorf("stopped, and %d of 1000 are as before", len(got))
	}
	list = command.Add(list, d.Begin(2, machines, command.Duration(time.Hour), 4*minute))
	if got := reached(list, "on"); len(got) != 1000 || ids(list) != "rollout" {
		t.Errorf("%d at the end, of %s", len(got), ids(list))
	}
	if got := reached(command.Add(nil, decide("x", 1, mode("on")).Begin(0, nil, command.Duration(time.Hour), 1)), "on"); len(got) != 0 {
		t.Errorf("no machine is known, and %q have it", got)
	}
}

func TestBadOutcomes(t *testing.T) {
	for tally, bad := range map[command.Tally]bool{{0, 0}: false, {0, 2}: false, {0, 3}: true, {3, 3}: true, {4, 3}: false, {90, 10}: false, {10, 90}: true} {
		if got := tally.Bad(); (got != "") != bad {
			t.Errorf("%+v: %q", tally, got)
		}
	}
}
