package platform

import (
	"bytes"
	"embed"
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

// texts are the templates of the studies' files.
//
//go:embed *.yaml.tmpl
var texts embed.FS

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
	t, err := template.ParseFS(texts, "*.tmpl")
	if err != nil {
		return nil, fmt.Errorf("make studies: %w", err)
	}
	var files []File
	for _, name := range []string{Threads, Memory, Pairs, Network} {
		var b bytes.Buffer
		if err := t.ExecuteTemplate(&b, name+".yaml.tmpl", data); err != nil {
			return nil, fmt.Errorf("make study %s: %w", name, err)
		}
		files = append(files, File{name, b.Bytes()})
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
