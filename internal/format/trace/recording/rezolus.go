package recording

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	parquetgo "github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace/parquet"
)

// rezolusCounters are the metrics of a cgroup that make a sample. A column is named
// METRIC/PATH/ID, or METRIC/PATH/STATE/ID if there are several, which add up. CPU time
// is in nanoseconds.
var rezolusCounters = [...]struct {
	metric string
	states []string
}{
	{"cgroup_cpu_cycles", nil},
	{"cgroup_cpu_instructions", nil},
	{"cgroup_cpu_usage", []string{"user", "system"}},
}

// rezolus reads Rezolus' Parquet, one row group at a time: it holds the counters of one
// in memory.
type rezolus struct {
	buffered
	file    *parquet.File
	groups  []parquetgo.RowGroup
	begun   int // groups that were read
	ts      int // column
	cgroups []*cgroup
}

// cgroup is a cgroup of the recording. One that was removed and made again has another
// id, and the counters of the old one no longer change.
type cgroup struct {
	path, id string
	columns  [len(rezolusCounters)][]int // none for a metric that was not recorded
	before   reading
}

func newRezolus(r io.ReaderAt, size int64) (Reader, error) {
	f, err := parquet.Open(r, size)
	if err != nil {
		return nil, fmt.Errorf("as Rezolus' recording: %w", err)
	}
	z := &rezolus{file: f, groups: f.RowGroups(), ts: -1}
	found := map[string]*cgroup{}
	for i, path := range f.Schema().Columns() {
		if len(path) != 1 {
			continue
		}
		if path[0] == "timestamp" {
			z.ts = i
		}
		for k, counter := range rezolusCounters {
			rest, ok := strings.CutPrefix(path[0], counter.metric+"/")
			slash := strings.LastIndexByte(rest, '/')
			if !ok || slash < 0 {
				continue
			}
			name, id := rest[:slash], rest[slash+1:]
			if counter.states != nil {
				slash := strings.LastIndexByte(name, '/')
				if slash < 0 || !slices.Contains(counter.states, name[slash+1:]) {
					continue
				}
				name = name[:slash]
			}
			c := found[name+"/"+id]
			if c == nil {
				c = &cgroup{path: name, id: id, before: reading{at: math.MinInt64}}
				found[name+"/"+id] = c
				z.cgroups = append(z.cgroups, c)
			}
			c.columns[k] = append(c.columns[k], i)
		}
	}
	z.cgroups = slices.DeleteFunc(z.cgroups, func(c *cgroup) bool {
		return len(c.columns[0]) == 0 || len(c.columns[1]) == 0
	})
	if z.ts < 0 || len(z.cgroups) == 0 {
		return nil, errors.New("read Rezolus' Parquet: no column timestamp, or no columns of cgroups' cycles and instructions")
	}
	if !slices.ContainsFunc(z.cgroups, func(c *cgroup) bool { return len(c.columns[2]) > 0 }) {
		return nil, errors.New("read Rezolus' Parquet: no columns cgroup_cpu_usage: without CPU time no sample counts")
	}
	slices.SortFunc(z.cgroups, func(a, b *cgroup) int { return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.id, b.id)) })
	return z, nil
}

// Read implements Reader.
func (z *rezolus) Read(s *sample.Sample) error {
	for {
		if err := z.buffered.Read(s); err == nil {
			return nil
		}
		if z.begun == len(z.groups) {
			return io.EOF
		}
		z.samples, z.next = z.samples[:0], 0
		z.begun++
		if err := z.group(z.begun - 1); err != nil {
			z.Found.Skip(1, "row group: %v", err)
		}
	}
}

// group makes samples of a row group, counted from 0.
func (z *rezolus) group(g int) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged: %v", p)
		}
	}()
	ts, err := z.counters(g, z.ts)
	if err != nil {
		return err
	}
	for _, c := range z.cgroups {
		var sums [len(rezolusCounters)][]float64
		for k, columns := range c.columns {
			for _, i := range columns {
				some, err := z.counters(g, i)
				if err == nil && len(some) != len(ts) {
					err = errors.New("columns of different lengths")
				}
				if err != nil {
					return err
				}
				if sums[k] == nil {
					sums[k] = some
					continue
				}
				for n, v := range some {
					sums[k][n] += v
				}
			}
		}
		c.samples(&z.buffered, ts, sums)
	}
	z.sort()
	return nil
}

// samples makes a sample of each two consecutive readings.
func (c *cgroup) samples(h *buffered, ts []float64, sums [len(rezolusCounters)][]float64) {
	s := sample.Sample{Machine: "rezolus", Signal: sample.CPI, Variant: "rezolus", Job: sample.JobName(c.path), Task: sample.TaskName(c.path + "/" + c.id)}
	for n, at := range ts {
		now := reading{at: sample.Millis(math.Round(at / 1e6)), cycles: sums[0][n], instructions: sums[1][n], s: math.NaN(), misses: math.NaN()}
		if math.IsNaN(now.cycles) || math.IsNaN(now.instructions) {
			continue // the cgroup was not there
		}
		if sums[2] != nil {
			now.s = sums[2][n] / 1e9
		}
		if c.before.at != math.MinInt64 && now.since(c.before, &s) {
			h.add(&s)
		}
		c.before = now
	}
}

// mostRows bounds a row group, which is held in memory: of nulls, a file of some bytes has any number.
const mostRows = 1 << 24

// counters reads a column of a row group; a null is NaN.
func (z *rezolus) counters(group, column int) ([]float64, error) {
	g := z.groups[group]
	if n := g.NumRows(); n < 0 || n > mostRows {
		return nil, fmt.Errorf("%d rows, want at most %d", n, mostRows)
	}
	if err := z.file.CheckPages(group, column); err != nil {
		return nil, err
	}
	r := parquetgo.NewColumnChunkValueReader(g.ColumnChunks()[column])
	defer r.Close()
	all := make([]float64, 0, g.NumRows())
	values := make([]parquetgo.Value, 512)
	for {
		n, err := r.ReadValues(values)
		for _, v := range values[:n] {
			switch {
			case v.IsNull():
				all = append(all, math.NaN())
			case v.Kind() == parquetgo.Int64:
				all = append(all, float64(v.Uint64()))
			default:
				return nil, fmt.Errorf("counter has type %v", v.Kind())
			}
		}
		switch {
		case int64(len(all)) > g.NumRows():
			return nil, errors.New("more values than rows")
		case err == io.EOF:
			return all, nil
		case err != nil:
			return nil, err
		}
	}
}
