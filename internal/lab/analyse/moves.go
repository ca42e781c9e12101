package analyse

import (
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// MigrationStats are the migrations of a part's threads in one cell: paper 000, section
// 4 (its figures 1 and 2 have 1,066 logical and 219 physical ones in a minute).
type MigrationStats struct {
	Levels   []study.Level `json:"levels"`
	Part     string        `json:"part"` // or AllParts
	Method   string        `json:"method"`
	Seconds  float64       `json:"seconds"` // of all windows
	Logical  int           `json:"logical"`
	Physical int           `json:"physical"`
	// PerSecond is of logical ones, over runs, PhysicalPerSecond of physical ones.
	PerSecond         Interval `json:"per_second"`
	PhysicalPerSecond Interval `json:"physical_per_second"`
	OnPlace           float64  `json:"on_place"` // least share of run time on the CPUs it was pinned to
	Doubled           float64  `json:"doubled"`  // largest share of time with two threads on a core while another core was idle
	Lost              uint64   `json:"lost"`     // trace records
}

// AllParts is the name of all parts of a run together.
const AllParts = "all parts"

// Migrations sums up the placement audits of each cell, by part and, where there are
// several parts, of all of them.
func Migrations(runs []result.Run) []MigrationStats {
	var out []MigrationStats
	for _, group := range byCell(valid(runs), study.Main) {
		var names []string
		for i := range group[0].Parts {
			names = append(names, group[0].Parts[i].Name)
		}
		n := len(out)
		for _, name := range names {
			if m, ok := moves(group, name, []string{name}); ok {
				out = append(out, m)
			}
		}
		if len(out) > n+1 {
			m, _ := moves(group, AllParts, names)
			out = append(out, m)
		}
	}
	return out
}

// moves sums up the audits of some parts of a cell's runs; false if none was audited.
func moves(group []*result.Run, name string, parts []string) (MigrationStats, bool) {
	m := MigrationStats{Levels: group[0].Cell.Levels, Part: name, OnPlace: 1}
	var logical, physical []float64
	for _, r := range group {
		audited, l, p := false, 0, 0
		for _, part := range parts {
			rec := partOf(r, part)
			if rec == nil || rec.Audit == nil {
				continue
			}
			a := rec.Audit
			for _, t := range a.Migrations {
				l += t.Logical
				p += t.Physical
			}
			audited, m.Method = true, a.Method
			m.OnPlace, m.Doubled, m.Lost = min(m.OnPlace, a.OnPlace), max(m.Doubled, a.Doubled), max(m.Lost, a.Lost)
		}
		if seconds := (r.Window.To - r.Window.From).Seconds(); audited {
			m.Logical, m.Physical, m.Seconds = m.Logical+l, m.Physical+p, m.Seconds+seconds
			logical, physical = append(logical, float64(l)/seconds), append(physical, float64(p)/seconds)
		}
	}
	m.PerSecond, m.PhysicalPerSecond = meanInterval(logical, "t over runs"), meanInterval(physical, "t over runs")
	return m, len(logical) > 0
}
