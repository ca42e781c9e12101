package remote

import (
	"errors"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/format/keyed"
)

const someKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"

func TestInventory(t *testing.T) {
	want := []HostConfig{
		{Name: "h1", Address: "10.0.0.1", User: "lab", Key: "~/.ssh/lab", Sudo: true},
		{Name: "h2", Address: "10.0.0.2:2222", Jump: "h1", HostKey: someKey},
	}
	for name, text := range map[string]string{
		"yaml": `
hosts:
  h1: {address: 10.0.0.1, user: lab, key: ~/.ssh/lab, sudo: true}
  h2: {address: "10.0.0.2:2222", jump: h1, host_key: "` + someKey + `"}
`,
		"terraform output -json": `{
  "vpc": {"sensitive": false, "type": "string", "value": "vpc-1"},
  "quell_hosts": {"sensitive": false, "type": ["map", "any"], "value": {
    "h1": {"address": "10.0.0.1", "user": "lab", "key": "~/.ssh/lab", "sudo": true},
    "h2": {"address": "10.0.0.2:2222", "jump": "h1", "host_key": "` + someKey + `"}
  }}
}`,
		"its value alone": `{"hosts": {"h1": {"address": "10.0.0.1", "user": "lab", "key": "~/.ssh/lab", "sudo": true},
    "h2": {"address": "10.0.0.2:2222", "jump": "h1", "host_key": "` + someKey + `"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			inv, err := ReadInventory("hosts", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if len(inv.Hosts) != len(want) {
				t.Fatalf("%+v", inv.Hosts)
			}
			for i, w := range want {
				g := inv.Hosts[i]
				if g.Name != w.Name || g.Address != w.Address || g.User != w.User || g.Key != w.Key || g.Jump != w.Jump ||
					g.HostKey != w.HostKey || g.Sudo != w.Sudo {
					t.Errorf("%+v, want %+v", g, w)
				}
			}
		})
	}
}

// All errors are reported at once, each with its line.
func TestInventoryThatIsWrong(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "at least one host"},
		{"no address", "hosts:\n  h1: {user: x}\n", "hosts.h1.address"},
		{"a password", "hosts:\n  h1: {address: a, password: secret}\n", "password"},
		{"a user in the address", "hosts:\n  h1: {address: root@a}\n", "root@a"},
		{"not a key", "hosts:\n  h1: {address: a, host_key: abc}\n", "ssh-ed25519"},
		{"through nobody", "hosts:\n  h1: {address: a, jump: h2}\n", "h2"},
		{"through itself", "hosts:\n  h1: {address: a, jump: h2}\n  h2: {address: b, jump: h1}\n", "without a cycle"},
		{"twice", "hosts:\n  h1: {address: a}\n  h1: {address: b}\n", "h1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ReadInventory("hosts.yaml", []byte(c.text))
			var invalid *keyed.InvalidError
			if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want a problem with %q", err, c.want)
			}
		})
	}
}

func FuzzReadInventory(f *testing.F) {
	f.Add("hosts: {h1: {address: a, jump: h1}}")
	f.Add(`{"quell_hosts": {"value": {"h1": {"address": "a"}}}}`)
	f.Add(`{"quell_hosts": {"value": null}}`)
	f.Fuzz(func(t *testing.T, text string) {
		inv, err := ReadInventory("hosts.yaml", []byte(text))
		if err != nil {
			return
		}
		if len(inv.Hosts) == 0 {
			t.Error("an inventory without hosts is right")
		}
		for i := range inv.Hosts {
			if s := &inv.Hosts[i]; s.Address == "" || s.Jump != "" && inv.Lookup(s.Jump) == nil {
				t.Errorf("%+v is right", s)
			}
		}
	})
}
