// Package workload has victims, antagonists and innocents as modes of one binary, starts
// them in their own cgroups, and measures whether two CPUs currently share a cache.
//
// A workload is the pair (Spec, Run): Run plays one Spec in this process until its
// standard input closes. A program that calls Run from a hidden subcommand can start
// itself as every workload. Tree starts that subcommand in cgroups that it makes and
// removes. The contention channels of these kinds are measured in
// docs/design/0001-contention-channels.md; TestChannelCPU and BenchmarkChannelCache
// repeat the measurements.
//
// Everything here is Linux only.
package workload
