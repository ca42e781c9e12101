package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
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
	"go.yaml.in/yaml/v3"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
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
	// Links to the dashboard keep working; the schema is that of Grafana 10.3 and later.
	if d.Uid == nil || *d.Uid != "quell" || d.SchemaVersion != 39 || len(d.Templating.List) == 0 || d.Templating.List[0].Type != dashboard.VariableTypeDatasource || d.Templating.List[0].Name != "datasource" {
		t.Errorf("uid %v, schema version %d, variables %+v", d.Uid, d.SchemaVersion, d.Templating.List)
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
		if unit := unitOf(raw); len(panel.Targets) > 0 && !slices.Contains(units, unit) {
			t.Errorf("%s has the unit %q", *panel.Title, unit)
		}
		// Each panel and each query asks the Prometheus that the user has chosen.
		if refs := regexp.MustCompile(`"datasource":\s*{[^{}]*(\${[^{}]*}[^{}]*)?}`).FindAllString(string(raw), -1); len(panel.Targets) > 0 && len(refs) != len(panel.Targets)+1 ||
			slices.ContainsFunc(refs, func(ref string) bool {
				return !strings.Contains(ref, `"${datasource}"`) || !strings.Contains(ref, `"prometheus"`)
			}) {
			t.Errorf("%s has the data sources %q", *panel.Title, refs)
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

// units are the names of Grafana's units that the dashboard may use. Grafana shows another name as text.
var units = []string{"short", "percentunit", "s", "bytes"}

// unitOf is the unit of a panel's values.
func unitOf(panel []byte) string {
	var p struct {
		FieldConfig struct{ Defaults struct{ Unit string } }
	}
	if err := json.Unmarshal(panel, &p); err != nil {
		return err.Error()
	}
	return p.FieldConfig.Defaults.Unit
}

// Every metric that a page names exists, and promtool accepts every expression of one.
func TestPagesReadMetricsThatExist(t *testing.T) {
	var server []byte // where the server's metrics are named
	for _, name := range []string{"server/metrics.go", "notify/queue.go", "evict/evict.go"} {
		text, err := os.ReadFile("../cluster/" + name)
		if err != nil {
			t.Fatal(err)
		}
		server = append(server, text...)
	}
	exists, series := known(), regexp.MustCompile(`\bquell_[a-z0-9_]*[a-z0-9](_?…|_?\*)?`)
	span := regexp.MustCompile("`([^`\n]*quell_[^`\n]*)`")
	var pages []string
	for _, pattern := range []string{"../../README.md", "../../docs/*.md", "../../docs/signals/*.md", "../../deploy/helm/quell/README.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		pages = append(pages, found...)
	}
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []rule
	n := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range series.FindAllString(string(text), -1) {
			if n++; !exists[name] && !strings.Contains(string(server), `"`+name+`"`) && !strings.HasSuffix(name, "…") && !strings.HasSuffix(name, "*") && name != "quell_hosts" { // that is an output of terraform

				t.Errorf("%s names %s, which does not exist", page, name)
			}
		}
		for _, m := range span.FindAllStringSubmatch(string(text), -1) {
			if name := series.FindString(m[1]); name != "" && name != m[1] && !strings.Contains(m[1], "…") {
				rules = append(rules, rule{fmt.Sprintf("page:%d", len(rules)), m[1]})
			}
		}
	}
	if n < 100 || len(rules) < 5 {
		t.Errorf("%d names and %d expressions", n, len(rules))
	}
	quelltest.Need(t, "promtool")
	check := func(all []rule) (string, error) {
		text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "pages", "rules": all}}})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "rules.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("promtool", "check", "rules", file).CombinedOutput()
		return string(out), err
	}
	if out, err := check(rules); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := check(append(rules, rule{"page:wrong", "quell_degraded >> 0"})); err == nil {
		t.Errorf("a wrong expression is accepted: %s", out)
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
