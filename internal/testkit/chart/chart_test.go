package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	deploy = "../../../deploy/"
	folder = deploy + "helm/quell/"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The chart has the shipped rules: files outside its folder cannot be part of it.
func TestRulesAreTheShipped(t *testing.T) {
	if read(t, folder+"files/quell.rules.yaml") != read(t, deploy+"prometheus/quell.rules.yaml") {
		t.Errorf("cp deploy/prometheus/quell.rules.yaml deploy/helm/quell/files/")
	}
}

// TestRendered, which needs helm, compares all of what the chart makes of them.
func TestRenderedRulesAreTheShipped(t *testing.T) {
	rendered := read(t, "testdata/full.golden.yaml")
	all := regexp.MustCompile(`(?m)^ +- (alert|record): (.+)$`).FindAllStringSubmatch(read(t, folder+"files/quell.rules.yaml"), -1)
	if len(all) == 0 {
		t.Error("no rules")
	}
	for _, m := range all {
		if !strings.Contains(rendered, m[1]+": "+m[2]+"\n") {
			t.Errorf("no %s %s in testdata/full.golden.yaml: go test -tags helm -run TestRendered ./internal/testkit/chart -update", m[1], m[2])
		}
	}
}

// flat are the values by their paths: "agent.kubelet.enabled". Maps that are empty, and those
// whose keys users choose, are values themselves.
func flat(in map[string]any, prefix string, out map[string]any) {
	for key, v := range in {
		name := prefix + key
		if m, ok := v.(map[string]any); ok && len(m) > 0 && !strings.HasSuffix(name, ".resources") {
			flat(m, name+".", out)
		} else {
			out[name] = v
		}
	}
}

func values(t *testing.T) map[string]any {
	t.Helper()
	var all map[string]any
	if err := yaml.Unmarshal([]byte(read(t, folder+"values.yaml")), &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	flat(all, "", out)
	return out
}

var tableRow = regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)` \\| `(.*?)` \\|")

// README.md has every value with its default, and no other.
func TestValuesAreDocumented(t *testing.T) {
	want, got := values(t), map[string]string{}
	for _, m := range tableRow.FindAllStringSubmatch(read(t, folder+"README.md"), -1) {
		got[m[1]] = m[2]
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		text, there := got[name]
		var shown any
		err := yaml.Unmarshal([]byte(text), &shown)
		if !there || err != nil || fmt.Sprint(shown) != fmt.Sprint(want[name]) {
			t.Errorf("%s is %v, and in README.md %q, %v", name, want[name], text, err)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("README.md has %s, which is no value", name)
	}
}

// schema is the part of a JSON schema that this test reads.
type schema struct {
	Properties           map[string]schema
	AdditionalProperties any
}

// values.schema.json knows every value, and refuses others.
func TestValuesAreInTheSchema(t *testing.T) {
	var s schema
	if err := json.Unmarshal([]byte(read(t, folder+"values.schema.json")), &s); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	var walk func(s schema, prefix string)
	walk = func(s schema, prefix string) {
		for key, sub := range s.Properties {
			name := prefix + key
			if sub.AdditionalProperties == false && len(sub.Properties) > 0 && key != "resources" {
				walk(sub, name+".")
			} else {
				known[name] = true
			}
		}
	}
	if s.AdditionalProperties != false {
		t.Error("unknown values are allowed")
	}
	walk(s, "")
	delete(known, "global") // Helm's own
	for name := range values(t) {
		if !known[name] {
			t.Errorf("%s is not in the schema", name)
		}
		delete(known, name)
	}
	for name := range known {
		t.Errorf("the schema has %s, which is no value", name)
	}
}

// The pod has the capabilities of the systemd unit, but for that which serves socket_group.
func TestCapabilitiesAreTheUnits(t *testing.T) {
	unit := read(t, deploy+"systemd/quell-agent.service")
	if !strings.Contains(unit, "\nLimitMEMLOCK=infinity\n") {
		t.Error("without CAP_SYS_RESOURCE the agent cannot lift the limit that eBPF has before Linux 5.11, and the unit does not")
	}
	line := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindStringSubmatch(unit)
	if line == nil {
		t.Fatal("the unit has no CapabilityBoundingSet")
	}
	var want, got []string
	for _, c := range strings.Fields(line[1]) {
		if c != "CAP_CHOWN" {
			want = append(want, strings.TrimPrefix(c, "CAP_"))
		}
	}
	for _, c := range values(t)["agent.capabilities"].([]any) {
		got = append(got, c.(string))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the chart has %v, the unit %v", got, want)
	}
}
