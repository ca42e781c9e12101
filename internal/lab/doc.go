// Package lab runs studies: experiments in which workloads run side by side
// under control, so that what one does to another can be believed.
//
// A study (package study) becomes a plan of runs. For each run the engine
// prepares environments, places them and reads back where they are, lets all
// roles begin at once, holds loads, observes, and ends with a record (package
// result) whose verdict says whether the run may be believed, with evidence.
// Every change to the machine is journalled or is a thing of the lab's own,
// and both are undone on the way out, at the next start after a kill -9, and
// by Restore.
package lab
