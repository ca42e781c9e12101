// Package load holds a role at a share of its CPUs: the function of Showstopper in "CPU
// pinning and partial CPU loads" (Podzimek et al., CCGrid 2015, section III). The role
// is stopped and continued once in each period (107 ms, as in the paper); a control law
// determines for how long.
//
// The law is deadbeat on the cumulative error: the next period compensates for all CPU
// time that is missing or in excess since the load was set. The mean over a window of
// length T is therefore within (period·max(u, 1−u) + one timer tick)/T of the target u
// if that is attainable. A target that is unattainable is reported within five seconds.
//
// A stopped process stays stopped when the lab is killed. Therefore every actuator
// first registers what it will stop with a Guard, a separate process that continues
// everything when the lab is gone.
package load
