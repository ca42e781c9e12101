package remote

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// resources are the instances of a resource with a count, as a provider would return
// them.
func resources(net, n int) cty.Value {
	all := make([]cty.Value, n)
	for i := range all {
		all[i] = cty.ObjectVal(map[string]cty.Value{"public_ip": cty.StringVal(fmt.Sprintf("198.51.%d.%d", net, i+1))})
	}
	return cty.TupleVal(all)
}

// The output of deploy/terraform/aws is an inventory with the names that the studies use,
// for any number of rented instances.
func TestTerraformsOutputIsAnInventory(t *testing.T) {
	file := "../../../deploy/terraform/aws/outputs.tf"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, problems := hclparse.NewParser().ParseHCL(text, filepath.Base(file))
	if problems.HasErrors() {
		t.Fatal(problems)
	}
	blocks := f.Body.(*hclsyntax.Body).Blocks
	i := slices.IndexFunc(blocks, func(b *hclsyntax.Block) bool { return b.Type == "output" && b.Labels[0] == TerraformOutput })
	if i < 0 {
		t.Fatalf("no output %s", TerraformOutput)
	}
	for _, c := range []struct {
		nodes, metal, servers, instances int
		want                             []string
	}{
		{1, 0, 0, 0, []string{"test"}},
		{3, 1, 0, 0, []string{"metal", "nb1", "nb2", "test"}},
		{2, 0, 2, 3, []string{"instance1", "instance2", "instance3", "nb1", "server1", "server2", "test"}},
	} {
		out, problems := blocks[i].Body.Attributes["value"].Expr.Value(&hcl.EvalContext{
			Variables: map[string]cty.Value{
				"var":          cty.ObjectVal(map[string]cty.Value{"user": cty.StringVal("admin")}),
				"aws_instance": cty.ObjectVal(map[string]cty.Value{"node": resources(100, c.nodes), "metal": resources(101, c.metal), "server": resources(102, c.servers), "instance": resources(103, c.instances)}),
			},
			Functions: map[string]function.Function{"merge": stdlib.MergeFunc},
		})
		if problems.HasErrors() {
			t.Fatal(problems)
		}
		value, err := ctyjson.Marshal(out, out.Type())
		if err != nil {
			t.Fatal(err)
		}
		inv, err := ReadInventory("hosts.json", fmt.Appendf(nil, `{%q: {"sensitive": false, "value": %s}}`, TerraformOutput, value))
		if err != nil {
			t.Fatalf("%s: %v", value, err)
		}
		var names []string
		seen := map[string]bool{}
		for _, h := range inv.Hosts {
			names = append(names, h.Name)
			if h.User != "admin" || !h.Sudo || h.Address == "" || seen[h.Address] {
				t.Errorf("%+v", h)
			}
			seen[h.Address] = true
		}
		slices.Sort(names)
		if !slices.Equal(names, c.want) {
			t.Errorf("%v, want %v", names, c.want)
		}
	}
}
