// Package placement says which tasks should share a machine, two by two, by the cost that
// was measured between them or, if that is not known, by their last-level cache misses;
// and how two tasks on one machine should be pinned.
//
// It is advice for a scheduler or a person that places tasks. It moves nothing.
package placement
