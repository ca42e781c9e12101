// Package lab runs studies: experiments in which workloads run side by side under
// control, so that the measured effect of one on another is valid.
//
// A study (package study) becomes a plan of runs. For each run the engine prepares
// environments, places them and reads the placement back, starts all roles at the same
// time, holds loads, observes, and writes a record (package result). The verdict in the
// record says whether the run is valid, with evidence. Every change to the machine is
// recorded in a journal or is an object that the lab made. Both are undone on exit, at
// the next start after a kill -9, and by Restore.
package lab
