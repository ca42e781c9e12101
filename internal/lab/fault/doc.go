// Package fault tests the shipped `quell lab`: it is killed, and its runs are disturbed.
//
// One test kills `quell lab run` with SIGKILL at random moments of a study that holds a
// load, pins its parts and has changed a knob of the machine. Each time it checks the
// result: every earlier record is still there, at most one run is begun without a record,
// and after `quell lab restore` no cgroup, process or knob change of the lab is left
// (`make lab-fault` kills it more often).
//
// Then it causes disturbances of a run: a co-runner that is killed, a co-runner that is
// stopped, a foreign process on a part's CPU, a full disk. It checks that the run's
// verdict reports each.
//
// With -smoke it runs one study from its file to its report, with one kill and a resume
// (`make lab-smoke`).
package fault
