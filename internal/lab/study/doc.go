// Package study is what a study file says: which roles run which workloads in
// which environments, where they are placed, which factors vary, and in which
// order the cells that follow from it are run. It reads and plans; it touches
// no machine, so a study can be checked and costed anywhere.
//
// Words (the lab's, from the papers it reproduces): a study has cells, one
// combination of factors each; a cell is run several times; in a run each role
// (foreground, background, neighbour, load generator) runs one workload in one
// environment (VE); a workload counts iterations; every second is a sample.
package study
