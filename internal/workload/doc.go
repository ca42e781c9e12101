// Package workload holds victims, antagonists and innocents as modes of one
// binary, puts them into cgroups of their own, and measures whether two CPUs
// share a cache now.
//
// A workload is the pair (Spec, Run): Run plays one Spec in this process until
// its standard input closes. A program that calls Run from a hidden subcommand
// can be its own zoo; Tree starts that subcommand in cgroups it makes and
// removes. The contention channels these kinds make are measured in
// docs/design/0001-contention-channels.md; TestChannelCPU and
// BenchmarkChannelCache repeat it.
//
// Everything here is for Linux.
package workload
