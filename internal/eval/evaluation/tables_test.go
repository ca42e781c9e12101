package evaluation

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/stat"
)

// TestPagesHaveNoLimit: whatever number of rows the server returns at most, every row is read
// once, in order; a minute with more rows than that is an error that names the setting.
func TestPagesHaveNoLimit(t *testing.T) {
	var all []sample.Millis
	for i := range 3000 {
		all = append(all, sample.Millis(i*61_000+500))
	}
	bounds := regexp.MustCompile(`make_timestamptz\((\d+)\)`)
	for _, limit := range []int{1, 7, 1000, 1e6} {
		asked := 0
		ask := func(_ context.Context, sql string, from, to sample.Millis) (rows [][]json.RawMessage, err error) {
			asked++
			m := bounds.FindAllStringSubmatch(sql, -1)
			if len(m) != 2 || m[0][1] != fmt.Sprint(int64(from)*1000) || m[1][1] != fmt.Sprint(int64(to)*1000) {
				return nil, fmt.Errorf("bounds %v, asked for %d to %d", m, from, to)
			}
			for _, at := range all {
				if at >= from && at < to {
					if len(rows) == limit {
						return nil, ErrLimit
					}
					rows = append(rows, []json.RawMessage{[]byte(strconv.Itoa(int(at)))})
				}
			}
			return rows, nil
		}
		var got []sample.Millis
		tb := &tables{t.Context(), ask, 0, all[len(all)-1] + 1, nil}
		err := tb.pages(day, "{from} {to}", nil, func(row []json.RawMessage) error {
			got = append(got, 0)
			return scan(row, &got[len(got)-1])
		})
		if err != nil || !slices.Equal(got, all) {
			t.Errorf("at most %d rows: %d of %d, %v", limit, len(got), len(all), err)
		}
		if limit == 1e6 && asked != 3 {
			t.Errorf("three days took %d questions", asked)
		}
	}
	always := func(context.Context, string, sample.Millis, sample.Millis) ([][]json.RawMessage, error) {
		return nil, fmt.Errorf("asked: %w", ErrLimit)
	}
	if err := (&tables{t.Context(), always, 0, 1e6, nil}).pages(week, "", nil, nil); err == nil || !strings.Contains(err.Error(), "query.rows") {
		t.Errorf("%v", err)
	}
	broken := func(context.Context, string, sample.Millis, sample.Millis) ([][]json.RawMessage, error) {
		return nil, errors.New("the server is away")
	}
	if _, err := OfCluster(t.Context(), broken, 0, 1e6, nil); err == nil || !strings.Contains(err.Error(), "the server is away") {
		t.Errorf("%v", err)
	}
}

// TestAttackManyIncidentsInAMinute: a machine that reports more within a minute than an answer may have is left out of that
// minute, and the report says so. Others' incidents are read, and the rest of the time in pages as long as before.
func TestAttackManyIncidentsInAMinute(t *testing.T) {
	const flood = sample.Millis(50 * 3_600_000)
	asked, last, got := 0, sample.Millis(0), 0
	ask := func(_ context.Context, sql string, from, to sample.Millis) ([][]json.RawMessage, error) {
		asked++
		switch in := from <= flood && flood < to; {
		case strings.HasPrefix(sql, "SELECT machine FROM"):
			return [][]json.RawMessage{{json.RawMessage(`"li'ar"`)}}, nil
		case in && !strings.Contains(sql, "AND machine <> 'li''ar'"):
			return nil, ErrLimit
		case !in && strings.Contains(sql, "li''ar"):
			t.Errorf("it is left out from %d to %d", from, to)
		}
		if from != last {
			t.Errorf("a page from %d, the last one ended at %d", from, last)
		}
		last = to
		return [][]json.RawMessage{{json.RawMessage("1")}}, nil
	}
	tb := &tables{t.Context(), ask, 0, 100 * sample.Millis(day.Milliseconds()), nil}
	if err := tb.pages(week, "SELECT 1 FROM incident_history WHERE updated < {to}", nil, func([]json.RawMessage) error { got++; return nil }); err != nil {
		t.Fatal(err)
	}
	if last != tb.to || len(tb.left) != 1 || tb.left[0].Machine != "li'ar" || tb.left[0].From > flood || tb.left[0].To <= flood || tb.left[0].To > tb.left[0].From.Add(shortest) {
		t.Errorf("read up to %d, left out %+v", last, tb.left)
	}
	if asked > 1000 || got > asked {
		t.Errorf("%d questions for %d pages", asked, got)
	}
}

// TestDaysComeFromMarks: a run's batches count from when it was last seen back, within the
// span, and not from before it began.
func TestDaysComeFromMarks(t *testing.T) {
	const hour = 3_600_000
	ask := func(context.Context, string, sample.Millis, sample.Millis) (rows [][]json.RawMessage, err error) {
		boot := strconv.FormatInt(32*hour, 36) + "-x2y3z4" // two batches a tick
		for _, run := range []struct {
			boot        string
			batch, seen int
		}{{"b", 10, 20 * hour}, {"b", 4, 30 * hour}, {"b", 100, 50 * hour}, {"b", 5, 200 * hour}, {boot, 12, 38 * hour}} {
			rows = append(rows, []json.RawMessage{[]byte(strconv.Quote(run.boot)), []byte(strconv.Itoa(run.batch)), []byte(strconv.Itoa(run.seen))})
		}
		return rows, nil
	}
	var e Evaluation
	if err := e.readDays(&tables{t.Context(), ask, 5 * hour, 40 * hour, nil}, hour); err != nil {
		t.Fatal(err)
	}
	// From 10 to 20, from 26 to 30, from −50 to 50, after the span, and from 32 to 38.
	if want := (10.0 + 4 + 35 + 6) / 24; math.Abs(e.Days-want) > 1e-9 {
		t.Errorf("%v days, want %v", e.Days, want)
	}
}

// TestALyingMachineEndsNoEvaluation: a document may contradict itself. Samples around a cap are looked
// up only where the cap is in the time of its incident, and a list of antagonists may be empty.
func TestALyingMachineEndsNoEvaluation(t *testing.T) {
	round := func(from, ended sample.Millis) string {
		return fmt.Sprintf(`{"id":"cap-1","suspect":{"task":"/hog","class":"batch"},"from":%d,"ended":%d,"outcome":"true-positive","cost_before":2,"cost_under":1,"samples":3}`, from, ended)
	}
	doc, err := json.Marshal("[" + strings.Join([]string{round(2000, 3000), round(9e18, 9.1e18), round(2000, 1000), round(-9e18, 3000), round(2000, 9e18), "null"}, ",") + "]")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(context.Context, string, sample.Millis, sample.Millis) (rows [][]json.RawMessage, err error) {
		var row []json.RawMessage
		for _, x := range []string{`"m"`, `"inc-1"`, "5000", `"neighbour"`, `"cpi"`, `"latency-sensitive"`, `"web"`, `"/web"`, "1000", "1", "0.1", string(doc)} {
			row = append(row, json.RawMessage(x))
		}
		return [][]json.RawMessage{row}, nil
	}
	var e Evaluation
	caps, err := e.readRounds(&tables{t.Context(), ask, 0, 10_000, nil})
	if err != nil || len(caps) != 1 || caps[0].from != 2000 || caps[0].ended != 3000 || caps[0].suspect != "/hog" || len(e.rounds) != 5 {
		t.Errorf("%v, %d rounds, caps %+v", err, len(e.rounds), caps)
	}
	inc := incidentOf(sample.LatencySensitive, 0.5, 2, 1, plan.TruePositive)
	inc.Findings, inc.Suspects, inc.Antagonists = []plan.Finding{{}}, nil, 1
	e.Add(inc)
	if r := e.Report(); r.Incidents != 1 {
		t.Errorf("%d incidents", r.Incidents)
	}
}

// TestFittedThresholds: of values with figure 7's distribution, the fits find it, and as many
// later values exceed a fitted threshold as should.
func TestFittedThresholds(t *testing.T) {
	halves := [2]histogram{{}, {}}
	const n = 200_000
	for half := range halves {
		for i := range n {
			x := stat.Figure7.Quantile((float64(i) + 0.5) / n)
			halves[half][int(math.Floor(math.Log(x)*binsPerUnit))]++
		}
	}
	c := costOf(CostKey{Job: "search", Platform: "p", Signal: sample.CPI}, halves[0], halves[1])
	if c.Samples != 2*n || math.Abs(c.Mean-1.8) > 0.01 || math.Abs(c.StdDev-0.16) > 0.005 {
		t.Errorf("%d samples, %.4f ± %.4f", c.Samples, c.Mean, c.StdDev)
	}
	if len(c.Fits) != 4 || c.Fits[0].GEV == nil || math.Abs(c.Fits[0].GEV.Location-stat.Figure7.Location) > 0.005 || math.Abs(c.Fits[0].GEV.Shape-stat.Figure7.Shape) > 0.01 {
		t.Errorf("fits %+v", c.Fits)
	}
	if len(c.Thresholds) != 3 {
		t.Fatalf("thresholds %+v", c.Thresholds)
	}
	for _, x := range c.Thresholds {
		if math.Abs(x.Above-x.Nominal) > 0.005 || math.Abs(x.Nominal-0.04) > 0.002 {
			t.Errorf("%s: %.4f above, nominal %.4f", x.Name, x.Above, x.Nominal)
		}
	}
	// Of two levels of cost, σ is no measure of the tail.
	two := [2]histogram{{}, {}}
	for half := range two {
		for b, k := range halves[half] {
			two[half][b] += 0.8 * k
			two[half][b+binsPerUnit/2] += 0.2 * k
		}
	}
	c = costOf(CostKey{}, two[0], two[1])
	if c.Thresholds[0].Above < 0.06 || math.Abs(c.Thresholds[1].Above-OutlierShare) > 0.005 {
		t.Errorf("bimodal: %+v", c.Thresholds)
	}
}

// TestThePapersValuesArePrinted: the values that reports compare with are those of the paper.
func TestThePapersValuesArePrinted(t *testing.T) {
	f, err := os.Open(filepath.Join("..", "..", "..", "testdata", "reference", "cpi2_headline.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]float64{}
	for _, row := range rows[1:] {
		if said[row[0]], err = strconv.ParseFloat(row[1], 64); err != nil {
			t.Fatal(err)
		}
	}
	for name, have := range map[string]float64{
		"incidents_per_machine_day": paperPerDay, "true_positive_rate_production_at_0.35": paperOutcomeRate, "median_relative_cpi_production_when_capped": paperAllCaps,
		"relative_cpi_true_positive_production": paperHelped, "relative_cpi_true_positive_nonproduction": paperHelpedOthers,
		"l3_misses_per_instruction_correlation": paperMisses, "web_search_gev_shape": paperShape,
	} {
		if want, ok := said[name]; !ok || have != want {
			t.Errorf("%s is %v, the paper has %v", name, have, want)
		}
	}
	if want := said["web_search_cpi_stddev"] / said["web_search_cpi_mean"]; math.Abs(want-paperSpread) > 1e-12 {
		t.Errorf("σ ÷ mean is %v, the paper has %v", paperSpread, want)
	}
}

// TestOnlyStrongSuspectsAreCompared: the paper's shares are of caps from its threshold on.
func TestOnlyStrongSuspectsAreCompared(t *testing.T) {
	var e Evaluation
	e.Add(incidentOf(sample.LatencySensitive, 0.5, 2, 1, plan.TruePositive))
	e.Add(incidentOf(sample.LatencySensitive, 0.4, 2, 2, plan.Noise))
	e.Add(incidentOf(sample.LatencySensitive, 0.1, 2, 2, plan.Noise))
	r := e.Report()
	for _, c := range r.Paper {
		if c.Figure == "16a" && (c.N != 2 || c.Here != 0.5) {
			t.Errorf("%+v", c)
		}
	}
	for _, s := range r.Sheets() {
		for _, row := range s.Rows {
			if len(row) != len(s.Head) {
				t.Errorf("%s: %d columns, want %d", s.Name, len(row), len(s.Head))
			}
		}
		if s.Name == "figure14" && (len(s.Rows) != 3 || s.Rows[0][1] != "") {
			t.Errorf("%s: %q", s.Name, s.Rows)
		}
	}
}
