package main

import (
	_ "embed" // the programs
	"errors"
	"fmt"

	"github.com/quell-dev/quell/internal/format/keyed"
)

// half is the purpose of a program: numbers are chosen on recordings with tuning programs,
// and judged on recordings with test programs.
type half string

const (
	tuning half = "tuning"
	test   half = "test"
	// innocence is for scenes in which a victim suffers and no task that could be named
	// caused it.
	innocence half = "innocence"
)

// program is a real program in a role. sh runs its scripts in the task's cgroup, with $D, a
// directory of the task, and they end with it. Those of a scene on a link run in a network
// namespace of the scene; $FAR before a command runs it at the link's far end, 10.99.0.2.
type program struct {
	Name     string
	Half     half     `key:"half"`
	Place    place    `key:"place"`    // of the scenes that contain it
	Packages []string `key:"packages"` // Debian packages
	Needs    string   `key:"needs"`    // a command in them
	// Setup runs once before the scene, in the task's cgroup.
	Setup string `key:"setup"`
	// Run works until it is killed. A victim's run prints a line for each equal piece of
	// work. While $D/heavy exists, the pieces of a program with phases take twice the work.
	Run    string `key:"run"`
	Phases bool   `key:"phases"`
	// Cause is what an antagonist takes from others: cpu, cache, memory, io, net.
	Cause string `key:"cause"`
}

// SetName implements keyed.Named.
func (p *program) SetName(name string) { p.Name = name }

// roles are all programs.
type roles struct {
	Victims     []program `key:"victims"`     // they count their own work
	Antagonists []program `key:"antagonists"` // they use the resources that others need
	Innocents   []program `key:"innocents"`   // they do little
}

//go:embed programs.yaml
var programText []byte

func loadPrograms() (*roles, error) {
	all := &roles{}
	r := keyed.Reader{File: "programs.yaml"}
	err := r.Document(all, programText)
	if len(r.Problems) > 0 {
		err = errors.Join(err, &keyed.InvalidError{What: "list of programs", Problems: r.Problems})
	}
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	return all, nil
}
