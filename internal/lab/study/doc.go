// Package study reads a study file: which roles run which workloads in which
// environments, where they are placed, which factors vary, and in which order the
// resulting cells are run. It reads and plans. It touches no machine, so a study can be
// checked and costed anywhere.
//
// Terms (the lab's, from the papers it reproduces): a study has cells, each one
// combination of factors. A cell is run several times. In a run each role (foreground,
// background, neighbour, load generator) runs one workload in one environment (VE). A
// workload counts iterations. Each second of a run is a sample.
package study
