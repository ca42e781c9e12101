package analyse

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Results are all results of a study, one list per kind of analysis that its file asks
// for.
type Results struct {
	Study     string                 `json:"study"`
	Runs      map[result.Verdict]int `json:"runs"`
	Reasons   map[result.Reason]int  `json:"reasons,omitempty"`
	Simulated bool                   `json:"simulated"`
	Stamps    []string               `json:"stamps,omitempty"`
	Noise     *Noise                 `json:"noise,omitempty"`
	// Drift is the change of the time per unit of work over the time of the study, in percent per
	// hour; nil where no two equal runs are far enough apart.
	Drift *Interval `json:"drift_percent_per_hour,omitempty"`

	Scores        []Score          `json:"scores,omitempty"`
	Degradations  []Degradation    `json:"degradations,omitempty"`
	Mappings      []MappingResult  `json:"mappings,omitempty"`
	Headline      *Headline        `json:"headline,omitempty"`
	Interferences []Interference   `json:"interferences,omitempty"`
	Systems       []System         `json:"systems,omitempty"`
	Correlations  []Correlations   `json:"correlations,omitempty"`
	Migrations    []MigrationStats `json:"migrations,omitempty"`
	Doses         []Dose           `json:"doses,omitempty"`
	DoseContrasts []DoseContrast   `json:"dose_contrasts,omitempty"`
	DoseGaps      []DoseGap        `json:"dose_gaps,omitempty"`
	DoseCosts     []DoseCost       `json:"dose_costs,omitempty"`
	Variations    []Variation      `json:"variations,omitempty"`
	Validities    []Validity       `json:"validities,omitempty"`
	NetIO         *NetIO           `json:"net_io,omitempty"`
	Tenants       *Tenants         `json:"net_tenants,omitempty"`
	// Insufficient names the requested analyses that have no data, with the reason.
	Insufficient map[string]string `json:"insufficient,omitempty"`
}

// Compute computes the analyses that a study asks for from the records of its runs.
func Compute(s *study.Study, runs []result.Run) Results {
	out := Results{Study: s.Name, Runs: map[result.Verdict]int{}, Reasons: map[result.Reason]int{}, Insufficient: map[string]string{}}
	for _, r := range runs {
		out.Runs[r.Verdict]++
		for _, e := range r.Evidence {
			out.Reasons[e.Reason]++
		}
		out.Simulated = out.Simulated || r.Simulated
		for _, t := range r.Stamps() {
			if !slices.Contains(out.Stamps, t) {
				out.Stamps = append(out.Stamps, t)
			}
		}
	}
	if n, ok := NoiseFloor(runs, s.Design.Repetitions); ok {
		out.Noise = &n
	}
	if d := workDrift(runs); finite(d.Value) {
		out.Drift = &d
	}
	seed := s.Design.Seed
	for _, a := range s.Analysis {
		option := func(name, usual string) string { return cmp.Or(a.Options[name], usual) }
		n := 0
		switch a.Kind {
		case "score":
			out.Scores = Scores(runs, seed)
			n = len(out.Scores)
		case "net-io":
			if v, ok := NetworkIO(runs, option("case", "case"), option("rate", "rate")); ok {
				out.NetIO, n = &v, len(v.Points)
			}
		case "net-tenants":
			if v, ok := NetworkTenants(runs, option("count", "tenants")); ok {
				out.Tenants, n = &v, len(v.Doses)+len(v.Latencies)
			}
		case "degradation":
			out.Degradations = Degradations(runs, seed)
			n = len(out.Degradations)
		case "mapping":
			out.Mappings = Mappings(runs, option("factor", "mapping"))
			out.Headline = headline(out.Mappings, strings.Fields(option("headline", "")))
			n = len(out.Mappings)
		case "interference":
			out.Interferences = Interferences(runs)
			n = len(out.Interferences)
		case "throughput", "energy":
			// One table is for both, with the first one's base.
			if out.Systems == nil {
				out.Systems = Systems(runs, option("factor", "placement"), option("base", "per-chip"))
			}
			n = len(out.Systems)
		case "correlation":
			out.Correlations = Events(runs, seed)
			n = len(out.Correlations)
		case "migration":
			out.Migrations = Migrations(runs)
			n = len(out.Migrations)
		case "dose-response":
			o := DoseOptions{Count: option("count", "neighbours"), State: option("state", "state"),
				VE: option("environment", "ve"), Base: option("base", "metal"), Seed: seed, Price: s.Price}
			if out.Noise != nil {
				o.Margin = 100 * out.Noise.Floor
			}
			out.Doses, out.DoseContrasts = DoseResponse(runs, o)
			out.DoseGaps, out.DoseCosts = DoseGaps(runs, o), DoseCosts(runs, o)
			n = len(out.Doses)
		case "variation":
			out.Variations = Variations(runs, option("factor", "instance"), seed)
			n = len(out.Variations)
		case "signal-validity":
			out.Validities = Validities(runs, seed)
			n = len(out.Validities)
		}
		if n == 0 {
			out.Insufficient[a.Kind] = insufficient(s, a.Kind, valid(runs))
		}
	}
	return out
}

// Matrix is square, in rows.
type Matrix [][]stat.Float

// At is the value in row i and column j.
func (m Matrix) At(i, j int) float64 { return float64(m[i][j]) }

// plain is the JSON form of an Interval.
type plain struct {
	Value  stat.Float `json:"value"`
	Low    stat.Float `json:"low"`
	High   stat.Float `json:"high"`
	Level  float64    `json:"level"`
	Method string     `json:"method"`
	N      int        `json:"n"`
}

// MarshalJSON writes null for a value that is unknown.
func (i Interval) MarshalJSON() ([]byte, error) {
	return json.Marshal(plain{stat.Float(i.Value), stat.Float(i.Low), stat.Float(i.High), i.Level, i.Method, i.N})
}

// UnmarshalJSON reads null as NaN.
func (i *Interval) UnmarshalJSON(text []byte) error {
	var p plain
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	*i = Interval{float64(p.Value), float64(p.Low), float64(p.High), p.Level, p.Method, p.N}
	return nil
}
