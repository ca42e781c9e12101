package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	grafana "github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

var metricName = regexp.MustCompile(`\b(quell|process|go)_[a-z0-9_]+`)

// used is the metrics that an expression reads. Strings of it, such as the new names of
// labels, are no metrics.
func used(expr string) []string {
	return metricName.FindAllString(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(expr, `""`), -1)
}

func known() map[string]bool {
	all := map[string]bool{"process_cpu_seconds_total": true, "process_resident_memory_bytes": true}
	for _, m := range metrics() {
		all[m.name] = true
	}
	return all
}

// strictly decodes by Grafana's schema, with no unknown key and none missing. The package returns
// empty lists of errors that are not nil, and leaves out what comes after one: strictness is a check
// of its own, and a dashboard with rows is decoded panel by panel.
func strictly(t *testing.T, what string, raw []byte, into interface{ UnmarshalJSONStrict([]byte) error }) {
	t.Helper()
	if err := into.UnmarshalJSONStrict(raw); err != nil && err.Error() != "" {
		t.Fatalf("%s, by Grafana's schema: %v", what, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// The dashboard is what Grafana's own schema says, every metric in it exists, and every metric of
// the table is on it. Its panels do not overlap.
func TestGrafanaDashboard(t *testing.T) {
	text, err := os.ReadFile("../../deploy/grafana/quell.json")
	if err != nil {
		t.Fatal(err)
	}
	r := cog.NewRuntime()
	r.RegisterDataqueryVariant(grafana.VariantConfig())
	for _, panel := range []variants.PanelcfgConfig{timeseries.VariantConfig(), stat.VariantConfig(), table.VariantConfig()} {
		r.RegisterPanelcfgVariant(panel)
	}
	var parts map[string]json.RawMessage
	var panels []json.RawMessage
	if err := errors.Join(json.Unmarshal(text, &parts), json.Unmarshal(parts["panels"], &panels)); err != nil {
		t.Fatal(err)
	}
	parts["panels"] = json.RawMessage("[]")
	rest, err := json.Marshal(parts)
	if err != nil {
		t.Fatal(err)
	}
	//lint:ignore SA1019 every Grafana reads the classic schema, older ones only that
	var d dashboard.Dashboard
	strictly(t, "the dashboard", rest, &d)
	misspelt := strings.Replace(string(panels[1]), `"gridPos"`, `"gridpos"`, 1)
	if err := new(dashboard.Panel).UnmarshalJSONStrict([]byte(misspelt)); err == nil || err.Error() == "" {
		t.Error("a misspelt key is accepted")
	}
	exists, shown := known(), map[string]bool{}
	var taken [1000][24]bool
	ids := map[uint32]bool{}
	for i, raw := range panels {
		panel, row := &dashboard.Panel{}, &dashboard.RowPanel{}
		if name := fmt.Sprintf("panel %d", i); strings.Contains(string(raw), `"type": "row"`) {
			strictly(t, name, raw, row) // it spans the width
			panel = &dashboard.Panel{Id: &row.Id, GridPos: row.GridPos, Title: row.Title}
		} else if strictly(t, name, raw, panel); len(panel.Targets) == 0 || *panel.Description == "" {
			t.Errorf("%s has no target or no description", *panel.Title)
		}
		if ids[*panel.Id] {
			t.Errorf("%s: the id %d is there twice", *panel.Title, *panel.Id)
		}
		ids[*panel.Id] = true
		for y := panel.GridPos.Y; y < panel.GridPos.Y+panel.GridPos.H; y++ {
			for x := panel.GridPos.X; x < panel.GridPos.X+panel.GridPos.W; x++ {
				if x >= 24 || taken[y][x] {
					t.Fatalf("%s overlaps another panel or the edge at %d, %d", *panel.Title, x, y)
				}
				taken[y][x] = true
			}
		}
		for _, target := range panel.Targets {
			query, ok := target.(*grafana.Dataquery)
			if !ok {
				q := target.(grafana.Dataquery)
				query = &q
			}
			for _, name := range used(query.Expr) {
				if shown[name] = true; !exists[name] {
					t.Errorf("%s reads %s, which does not exist", *panel.Title, name)
				}
			}
		}
	}
	for name := range maps.Keys(exists) {
		if !shown[name] {
			t.Errorf("%s is in no panel", name)
		}
	}
}

// Every metric that the rules for Prometheus read exists: the server's are in its own table.
func TestRulesReadMetricsThatExist(t *testing.T) {
	exists := known()
	server, err := os.ReadFile("../cluster/server/metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, rule := range alertRules(t) {
		for _, name := range used(rule.Expr) {
			if n++; !exists[name] && !strings.Contains(string(server), `"`+name+`"`) {
				t.Errorf("%s%s reads %s, which does not exist", rule.Alert, rule.Record, name)
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d metrics are read", n)
	}
	if got := used(`a(quell_caps, "quell_x") + process_y`); !slices.Equal(got, []string{"quell_caps", "process_y"}) {
		t.Errorf("%q", got)
	}
}
