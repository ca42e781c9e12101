package remote

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

var update = flag.Bool("update", false, "write the golden files anew")

const terraform = "../../../deploy/terraform/aws/"

// blocks are a Terraform file's blocks.
func blocks(t *testing.T, file string) hclsyntax.Blocks {
	t.Helper()
	text, err := os.ReadFile(terraform + file)
	if err != nil {
		t.Fatal(err)
	}
	f, problems := hclparse.NewParser().ParseHCL(text, file)
	if problems.HasErrors() {
		t.Fatal(problems)
	}
	return f.Body.(*hclsyntax.Body).Blocks
}

// resources are the instances of a resource with a count, as a provider would return
// them.
func resources(net, n int) cty.Value {
	all := make([]cty.Value, n)
	for i := range all {
		all[i] = cty.ObjectVal(map[string]cty.Value{"id": cty.StringVal(fmt.Sprintf("i-%d%02d", net, i)), "host_id": cty.StringVal("h-1"),
			"private_ip": cty.StringVal(fmt.Sprintf("172.31.%d.%d", net, i+1)), "public_ip": cty.StringVal(fmt.Sprintf("198.51.%d.%d", net, i+1))})
	}
	return cty.TupleVal(all)
}

// rented are the numbers of instances that are rented.
type rented struct{ nodes, metal, servers, instances, pairs int }

// output is what terraform output -json prints for them.
func (r rented) output(t *testing.T) []byte {
	t.Helper()
	ctx := &hcl.EvalContext{
		Variables: map[string]cty.Value{
			"var": cty.ObjectVal(map[string]cty.Value{"user": cty.StringVal("admin"), "region": cty.StringVal("us-east-2")}),
			"aws_instance": cty.ObjectVal(map[string]cty.Value{"gate": resources(99, 1).Index(cty.NumberIntVal(0)), "node": resources(100, r.nodes), "metal": resources(101, r.metal),
				"server": resources(102, r.servers), "instance": resources(103, r.instances), "pair": resources(104, r.pairs)}),
			"tls_private_key": cty.ObjectVal(map[string]cty.Value{"host": cty.ObjectVal(map[string]cty.Value{"public_key_openssh": cty.StringVal(someKey + "\n")})}),
		},
		Functions: map[string]function.Function{"merge": stdlib.MergeFunc, "join": stdlib.JoinFunc, "trimspace": stdlib.TrimSpaceFunc},
	}
	locals := map[string]cty.Value{}
	for _, b := range blocks(t, "main.tf") {
		for name, a := range b.Body.Attributes {
			if b.Type == "locals" && name != "user_data" { // no output has it
				v, problems := a.Expr.Value(ctx)
				if problems.HasErrors() {
					t.Fatal(problems)
				}
				locals[name] = v
			}
		}
	}
	ctx.Variables["local"] = cty.ObjectVal(locals)
	all := blocks(t, "outputs.tf")
	i := slices.IndexFunc(all, func(b *hclsyntax.Block) bool { return b.Type == "output" && b.Labels[0] == TerraformOutput })
	if i < 0 {
		t.Fatalf("no output %s", TerraformOutput)
	}
	out, problems := all[i].Body.Attributes["value"].Expr.Value(ctx)
	if problems.HasErrors() {
		t.Fatal(problems)
	}
	value, err := ctyjson.Marshal(out, out.Type())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Appendf(nil, "{%q: {\"sensitive\": false, \"value\": %s}}\n", TerraformOutput, value)
}

// The output of deploy/terraform/aws is an inventory with the names that the studies use,
// for any number of rented instances. All but the gate are reached through it, and only
// neighbours are switched on and off.
func TestTerraformsOutputIsAnInventory(t *testing.T) {
	for _, c := range []struct {
		rented
		want []string
	}{
		{rented{nodes: 1}, []string{"gate", "test"}},
		{rented{nodes: 3, metal: 1}, []string{"gate", "metal", "nb1", "nb2", "test"}},
		{rented{nodes: 2, servers: 2, instances: 3}, []string{"gate", "instance1", "instance2", "instance3", "nb1", "peer1", "sink", "test"}},
		{rented{nodes: 1, pairs: 6}, []string{"cluster1", "cluster2", "gate", "single1", "single2", "spread1", "spread2", "test"}},
	} {
		inv, err := ReadInventory("hosts.json", c.output(t))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		seen := map[string]bool{}
		for _, h := range inv.Hosts {
			names = append(names, h.Name)
			gate, nb := h.Name == "gate", strings.HasPrefix(h.Name, "nb")
			if h.User != "admin" || h.HostKey != someKey || h.Sudo == gate || h.Jump == "gate" == gate || (h.Up != "") != nb || (h.Down != "") != nb || seen[h.Address] {
				t.Errorf("%+v", h)
			}
			if private := strings.HasPrefix(h.Address, "172.31."); private == gate {
				t.Errorf("%s is at %s", h.Name, h.Address)
			}
			seen[h.Address] = true
		}
		slices.Sort(names)
		if !slices.Equal(names, c.want) {
			t.Errorf("%v, want %v", names, c.want)
		}
	}
	// The inventory by which all studies are checked for EC2, in package labcmd.
	const file = "testdata/terraform-output.json"
	got := rented{nodes: 12, metal: 1, servers: 12, instances: 50, pairs: 6}.output(t)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != string(got) {
		t.Errorf("%s is not what Terraform prints (%v); write it anew with -update", file, err)
	}
}
