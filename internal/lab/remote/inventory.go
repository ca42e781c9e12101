package remote

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/format/keyed"
)

// Inventory is the hosts that a lab may use.
type Inventory struct {
	Hosts []HostConfig `key:"hosts" help:"by name"`
}

// HostConfig says how a host is reached. It holds no secret.
type HostConfig struct {
	Name    string `key:"-"`
	Address string `key:"address" help:"host or host:port"`
	User    string `key:"user" help:"user to log in as; none: root"`
	Key     string `key:"key" help:"private key file; none: keys of the SSH agent, then ~/.ssh/id_*"`
	// HostKey is as in the host's /etc/ssh/ssh_host_ed25519_key.pub.
	HostKey    string `key:"host_key" help:"the host's public key; none: look it up in known_hosts"`
	KnownHosts string `key:"known_hosts" help:"known_hosts file; none: ~/.ssh/known_hosts"`
	Jump       string `key:"jump" help:"name of the host to connect through"`
	Sudo       bool   `key:"sudo" help:"become root with sudo -n; cgroups need root"`
	// Up and Down end when the host is on or off; it need not accept connections yet.
	Up     string `key:"up" help:"shell command that switches the host on, also if it is on; run on the lab's machine"`
	Down   string `key:"down" help:"shell command that switches it off, also if it is off"`
	Inside string `key:"inside" help:"address at which the study's other hosts reach it; none: address without the port"`
}

// SetName implements keyed.Named.
func (s *HostConfig) SetName(name string) { s.Name = name }

// From is the address at which other hosts reach it.
func (s *HostConfig) From() string {
	host, _, err := net.SplitHostPort(s.Address)
	if err != nil {
		host = s.Address
	}
	return cmp.Or(s.Inside, host)
}

// Missing implements keyed.Needing.
func (s *HostConfig) Missing(seen map[string]bool) []string {
	if seen["address"] {
		return nil
	}
	return []string{"address"}
}

// TerraformOutput is the output of `terraform output -json` that holds the hosts, in the
// format of the inventory file.
const TerraformOutput = "quell_hosts"

// ReadInventory reads an inventory: YAML, or the output of `terraform output -json`.
// Problems are a *keyed.InvalidError.
func ReadInventory(file string, text []byte) (*Inventory, error) {
	var outputs map[string]struct {
		Value json.RawMessage `json:"value"`
	}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) && json.Unmarshal(text, &outputs) == nil {
		if o, ok := outputs[TerraformOutput]; ok && o.Value != nil {
			// JSON is YAML. The mapping from names is the output itself.
			text = append(append([]byte(`{"hosts": `), o.Value...), '}')
		}
	}
	var inv Inventory
	r := keyed.Reader{File: file}
	if err := r.Document(&inv, text); err != nil {
		return nil, fmt.Errorf("read inventory %s: %w", file, err)
	}
	if len(r.Problems) == 0 && len(inv.Hosts) == 0 {
		r.Add("hosts", "none", "at least one host", file)
	}
	for i := range inv.Hosts {
		inv.check(&r, &inv.Hosts[i])
	}
	if len(r.Problems) > 0 {
		return nil, &keyed.InvalidError{What: "inventory " + file, Problems: r.Problems}
	}
	return &inv, nil
}

func (inv *Inventory) check(r *keyed.Reader, s *HostConfig) {
	key := "hosts." + s.Name
	if s.Address == "" || strings.ContainsAny(s.Address, " @/") {
		r.Add(key+".address", s.Address, "a host, or host:port", r.Near(key))
	}
	if _, err := parseHostKey(s.HostKey); s.HostKey != "" && err != nil {
		r.Add(key+".host_key", s.HostKey, "a line like \"ssh-ed25519 AAAA…\"", r.Near(key))
	}
	// A host that is reached through itself cannot be reached.
	for at, steps := s, 0; at.Jump != ""; steps++ {
		next := inv.Lookup(at.Jump)
		if next == nil || steps > len(inv.Hosts) {
			r.Add(key+".jump", s.Jump, "the name of another host, without a cycle", r.Near(key))
			return
		}
		at = next
	}
}

// Lookup finds a host by its name; nil if there is none.
func (inv *Inventory) Lookup(name string) *HostConfig {
	i := slices.IndexFunc(inv.Hosts, func(s HostConfig) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &inv.Hosts[i]
}
