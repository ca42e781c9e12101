package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"
)

// shape is how an antagonist comes and goes in a stage.
type shape string

const (
	arrives shape = "arrives" // it begins, stays, and is gone
	bursts  shape = "bursts"  // the same task is busy three times, with pauses
	ramp    shape = "ramp"    // its weight grows in four steps from a sixteenth of the default to that
	group   shape = "group"   // two begin together
	phase   shape = "phase"   // no antagonist: a victim's pieces of work become twice as large
	quiet   shape = "quiet"   // no antagonist and no change
)

// stage is a stretch of a scene and the calm stretch after it.
type stage struct {
	shape       shape
	antagonists []*program // two in a group, none in phase and quiet
	victim      int        // index of the victim whose phase it is
}

// place is the resource that the tasks of a scene share.
type place string

const (
	onCPUs place = ""
	onDisk place = "disk" // the scratch directory's disk
	onLink place = "link" // a network namespace's; sends 20 Mbit/s
)

// scene is a machine with victims and innocents for a few minutes.
type scene struct {
	name      string
	half      half
	on        place
	victims   []*program
	innocents []*program
	// float lets all tasks run on every CPU. Otherwise victims and antagonists share one,
	// and innocents have both.
	float bool
	// htb limits the link by a class of HTB instead of a token bucket.
	htb    bool
	stages []stage
}

// Lengths of a scene, in sampling intervals.
const (
	interval = time.Second
	learning = 40 // before the first stage: specs need samples
	busy     = 16 // a stage
	calm     = 14 // after it
	burst    = 8  // one of three in a stage of bursts, and the pause after it
	settling = 1  // of a stage or a calm stretch, not counted: programs start and end
)

// length returns the length of a stage, without the calm stretch after it.
func (s *stage) length() int {
	if s.shape == bursts {
		return 3*burst + 2*burst
	}
	return busy
}

func (s *scene) length() int {
	n := learning
	for i := range s.stages {
		n += s.stages[i].length() + calm
	}
	return n
}

// programsOf returns the programs of a half for a place.
func programsOf(all []program, h half, on place) (some []*program) {
	for i := range all {
		if all[i].Half == h && all[i].Place == on {
			some = append(some, &all[i])
		}
	}
	return some
}

// allScenes returns all scenes.
func allScenes() (all []scene, err error) {
	p, err := loadPrograms()
	if err != nil {
		return nil, err
	}
	for _, h := range []half{tuning, test} {
		all = slices.Concat(all, p.scenes(h, onCPUs, 10), p.scenes(h, onDisk, 2), p.scenes(h, onLink, 2))
	}
	return append(all, p.innocenceScenes()...), nil
}

// innocenceScenes returns the cases of innocence (design 0008, "From served to blame"), ten
// rounds of each. A victim without phases suffers from all antagonists of the half.
func (p *roles) innocenceScenes() (all []scene) {
	for _, v := range programsOf(p.Victims, innocence, onCPUs) {
		one := stage{shape: phase}
		if !v.Phases {
			one = stage{shape: arrives, antagonists: programsOf(p.Antagonists, innocence, onCPUs)}
		}
		for n := range 10 {
			all = append(all, scene{name: fmt.Sprintf("%s-%s-%02d", innocence, v.Name, n+1), half: innocence,
				victims: []*program{v}, innocents: programsOf(p.Innocents, innocence, onCPUs), stages: []stage{one}})
		}
	}
	return all
}

// scenes returns n scenes of a half at a place, the same at every call: every victim is in
// the same number of scenes, and every antagonist too, or in one more. One in five has no
// antagonist.
func (p *roles) scenes(h half, on place, n int) []scene {
	const stages = 8
	var all []scene
	vs, as, is := programsOf(p.Victims, h, on), programsOf(p.Antagonists, h, on), programsOf(p.Innocents, h, onCPUs)
	seed := fnv.New64a()
	fmt.Fprint(seed, h, on)
	r := rand.New(rand.NewPCG(seed.Sum64(), 1))
	var left []*program // antagonists that have not come yet
	next := func(not *program) *program {
		for {
			if len(left) == 0 {
				left = slices.Clone(as)
				r.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
			}
			a := left[0]
			left = left[1:]
			if a != not {
				return a
			}
		}
	}
	for i := range n {
		s := scene{name: fmt.Sprintf("%s-%02d", h, i+1), half: h, on: on, float: i%2 == 1}
		if on != onCPUs { // all CPUs are used, since there are enough
			s.name, s.float, s.htb = fmt.Sprintf("%s-%s-%d", h, on, i+1), true, i%2 == 1
		}
		for k := range 2 {
			s.victims = append(s.victims, vs[(i+k*(1+i/len(vs)))%len(vs)])
		}
		if s.victims[0] == s.victims[1] {
			s.victims[1] = vs[(i+1)%len(vs)]
		}
		if on != onCPUs {
			s.innocents = programsOf(p.Innocents, h, on)
		}
		for _, k := range r.Perm(len(is))[:2+i%2] {
			s.innocents = append(s.innocents, is[k])
		}
		for range stages {
			one := stage{shape: arrives}
			switch k := r.IntN(20); {
			case i%5 == 4 && k < 10:
				one.shape = quiet
			case i%5 == 4:
				one.shape = phase
			case k < 10:
			case k < 12:
				one.shape = bursts
			case k < 15 && on == onCPUs: // weights apply to CPUs only
				one.shape = ramp
			case k < 18:
				one.shape = group
			default:
				one.shape = phase
			}
			if one.shape == phase {
				if one.victim = slices.IndexFunc(s.victims, func(p *program) bool { return p.Phases }); one.victim < 0 {
					one.shape, one.victim = quiet, 0
				}
			}
			if one.shape != phase && one.shape != quiet {
				one.antagonists = append(one.antagonists, next(nil))
			}
			if one.shape == group {
				one.antagonists = append(one.antagonists, next(one.antagonists[0]))
			}
			s.stages = append(s.stages, one)
		}
		all = append(all, s)
	}
	return all
}
