// Package load holds a role at a share of its CPUs: the part that Showstopper
// plays in "CPU pinning and partial CPU loads" (Podzimek et al., CCGrid 2015,
// section III). The role is stopped and let go once in each period (107 ms, as
// in the paper), for as long as a control law says.
//
// The law is deadbeat on the cumulative error: what was missed or overdone
// since the load was set is made up for in the next period, so the mean over a
// window of length T is within (period·max(u, 1−u) + one timer tick)/T of the
// target u wherever that can be reached, and where it cannot be, that is said
// within five seconds instead of hidden.
//
// A stopped process stays stopped when the lab is killed; so every actuator
// that stops announces first what it stops to a Guard, a process of its own that lets
// everything go when the lab is gone.
package load
