// Package placement says which tasks should share a machine, two by two, by what
// they were measured to cost each other or, where that is not known, by how much
// they miss the last-level cache; and how two on one machine should be pinned.
//
// It is advice for who places tasks: a scheduler, or a person. It moves nothing.
package placement
