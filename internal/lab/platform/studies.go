package platform

import (
	"bytes"
	"fmt"
	"slices"
	"text/template"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/place"
	"github.com/quell-dev/quell/internal/machine/host"
)

// The studies, in the order of their execution.
const (
	Threads = "platform-threads" // paper 002, 5.2: threads one by one
	Memory  = "platform-memory"  // a chain of loads through ever larger sets
	Pairs   = "platform-pairs"   // papers 000 and 003: pairs, by relation
	Network = "platform-network" // paper 002, 6.2: ping-pong, by relation
)

// File is a study's file.
type File struct {
	Name string
	Text []byte
}

// mostLevels is the largest number of levels of threads.
const mostLevels = 12

// relations are the relations of a pair's CPUs, from far to near.
var relations = [...]string{"cross-package", "same-llc", "smt-sibling", "same-thread"}

// Studies returns the files of a machine's studies, with the given runs per cell and
// measured seconds per run.
func Studies(top host.Topology, allowed sample.Set, repetitions, seconds int) ([]File, error) {
	data := struct {
		Repetitions, Seconds int
		Threads              []int
		Sizes                []string
		Relations            []string
	}{repetitions, seconds, levels(allowed.Len()), sizes(top), nil}
	for _, r := range relations {
		if _, err := place.Relation(top, allowed, r, 1, 2); err == nil {
			data.Relations = append(data.Relations, r)
		}
	}
	var files []File
	for _, one := range []struct{ name, text string }{{Threads, threadsText}, {Memory, memoryText}, {Pairs, pairsText}, {Network, networkText}} {
		t, err := template.New(one.name).Parse(one.text)
		if err != nil {
			return nil, fmt.Errorf("make study %s: %w", one.name, err)
		}
		var b bytes.Buffer
		if err := t.Execute(&b, data); err != nil {
			return nil, fmt.Errorf("make study %s: %w", one.name, err)
		}
		files = append(files, File{one.name, b.Bytes()})
	}
	return files, nil
}

// levels returns numbers of threads from 1 to n: all if they are few, else the ends and
// numbers around half of n, where the knee is expected, and around a quarter, where it
// is with four threads per core.
func levels(n int) []int {
	var all []int
	if n <= mostLevels {
		for k := range n {
			all = append(all, k+1)
		}
		return all
	}
	for _, k := range []int{1, n / 8, n / 4, n/4 + 1, 3 * n / 8, n/2 - 1, n / 2, n/2 + 1, n/2 + 2, 5 * n / 8, 3 * n / 4, n} {
		if k > 0 {
			all = append(all, k)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// sizes returns working sets from within the first cache to far beyond the last.
func sizes(top host.Topology) []string {
	all := []string{"16KiB", "128KiB", "512KiB", "2MiB", "8MiB", "32MiB", "128MiB"}
	for _, c := range top.CPUs {
		if c.LLC.Size > 64<<20 {
			return append(all, "512MiB")
		}
	}
	return all
}

const threadsText = `# Busy threads added one by one: the first that shares a core causes a step.
version: 1
study: platform-threads
question: How many cores are behind the CPUs, and what does a second thread on a core cost?
environments:
  metal: {driver: host}
workloads:
  cpu-burn: {builtin: cpu-burn, options: -work=20000000, warmup: {for: 500ms}, metric: {name: runtime, unit: s/addition, better: lower}}
roles:
  test: {workload: cpu-burn, environment: metal, threads: $threads, measure: true}
factors:
  threads: [{{range $i, $n := .Threads}}{{if $i}}, {{end}}"{{$n}}"{{end}}]
controls: {solo: false, aa_pairs: 2}
design: {repetitions: {{.Repetitions}}, seed: 1}
run: {for: {{.Seconds}}s, timeout: 2m, retries: 1, cooldown: 100ms}
observe: {sets: [cpu, schedstat]}
analysis:
  - {kind: dose-response, count: threads}
`

const memoryText = `# Dependent loads in working sets of increasing size, and a bandwidth sweep.
version: 1
study: platform-memory
question: How far away are the caches and the memory?
environments:
  metal: {driver: host, cpus: 1}
workloads:
{{- range .Sizes}}
  chase-{{.}}: {builtin: chase, options: -set={{.}} -work=200000, warmup: {for: 1s}, metric: {name: latency, unit: s/load, better: lower}}
{{- end}}
  triad: {builtin: triad, warmup: {for: 1s}, metric: {name: bandwidth, unit: bytes/s, better: higher}}
roles:
  test: {workload: $work, environment: metal, threads: "1", measure: true}
factors:
  work: [{{range .Sizes}}chase-{{.}}, {{end}}triad]
controls: {solo: false, aa_pairs: 0}
design: {repetitions: {{.Repetitions}}, seed: 1}
run: {for: {{.Seconds}}s, timeout: 2m, retries: 1, cooldown: 100ms}
observe: {sets: [cpu]}
analysis:
  - {kind: score}
`

const pairsText = `# The loss of each pair, by the relation of their CPUs.
version: 1
study: platform-pairs
question: What does a neighbour cost, and where should it be placed?
environments:
  ve: {driver: cgroup, cpus: 1}
workloads:
  compute: {builtin: cpu-burn, options: -work=20000000, warmup: {for: 1s}, metric: {name: runtime, unit: s/addition, better: lower}}
  cache:   {builtin: chase, options: -set=4MiB -work=200000, warmup: {for: 1s}, metric: {name: latency, unit: s/load, better: lower}}
  kernel:  {builtin: syscall, warmup: {for: 1s}, metric: {name: runtime, unit: s/call, better: lower}}
  stream:  {builtin: triad, warmup: {for: 1s}, metric: {name: runtime, unit: s/byte, better: lower}}
roles:
  fg: {workload: $fgw, environment: ve, threads: "1", measure: true}
  bg: {workload: $bgw, environment: ve, threads: "1"}
factors:
  fgw: [compute, cache, kernel]
  bgw: [compute, stream]
  placement:
{{- range .Relations}}
    - {name: {{.}}, relation: {{.}}}
{{- end}}
controls: {solo: true, aa_pairs: 2}
design: {repetitions: {{.Repetitions}}, seed: 1}
run: {for: {{.Seconds}}s, timeout: 2m, retries: 1, cooldown: 100ms}
observe: {sets: [cpu, psi, schedstat], placement: [poll]}
analysis:
  - {kind: degradation}
`

const networkText = `# The round trip of a datagram to another network namespace of this machine, by the
# relation of the CPUs of its ends: the kernel's share of any round trip.
version: 1
study: platform-network
question: How long does a datagram take through this kernel and back?
networks:
  near: {uplink: far}
  far: {}
environments:
  here:  {driver: cgroup, cpus: 1, network: near}
  there: {driver: cgroup, cpus: 1, network: far}
workloads:
  ping: {builtin: udp-ping, options: -every=0s, time: {{.Seconds}}s, warmup: {for: 500ms}, work_unit: answer, metric: {name: answers, unit: answers/s, better: higher}}
  echo: {builtin: udp-echo, time: {{.Seconds}}s, warmup: {for: 500ms}, work_unit: answer}
roles:
  ping: {workload: ping, environment: here, asks: mirror, measure: true}
  mirror: {workload: echo, environment: there}
factors:
  placement:
{{- range .Relations}}
    - {name: {{.}}, relation: {{.}}}
{{- end}}
controls: {solo: false, aa_pairs: 2}
design: {repetitions: {{.Repetitions}}, seed: 1}
run: {for: {{.Seconds}}s, timeout: 2m, retries: 1, cooldown: 100ms}
observe: {sets: [cpu, psi, schedstat], placement: [poll]}
analysis:
  - {kind: net-tenants}
`
