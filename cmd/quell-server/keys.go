package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/core/sample"
)

// defaultOverlap is how long the credentials of a replaced key stay valid: agents ask for
// new ones every day, but machines may be off.
const defaultOverlap = 30 * 24 * time.Hour

func keysCommand(f *flags) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{Use: "keys", Short: "list the keys that sign credentials for the bus", Args: args(0, "none"),
		Long: `keys lists the key that signs credentials, the keys before it, and the holders whose newest
credentials each has signed. Holders of a key that ends need new credentials by then. Agents
with credentials that expire (--ttl) get them within a day, from a server with an embedded
NATS server.`,
		Example: "  quell-server keys\n  quell-server keys --json | jq -r '.[] | select(.until) | .holders[]'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := f.keys()
			if err != nil {
				return err
			}
			all, err := a.SigningKeys(time.Now())
			if err != nil {
				return err
			}
			return writeKeys(cmd.OutOrStdout(), all, asJSON)
		}}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON instead of text for people")
	cmd.AddCommand(rotateCommand(f))
	return cmd
}

func writeKeys(w io.Writer, all []authority.SigningKey, asJSON bool) error {
	type view struct {
		Key     string   `json:"key"`
		Until   string   `json:"until,omitempty"`
		Holders []string `json:"holders"`
	}
	views := []view{}
	for _, k := range all {
		v := view{Key: k.Key, Holders: []string{}}
		if !k.Until.IsZero() {
			v.Until = day(k.Until.Unix())
		}
		for _, i := range k.Holders {
			v.Holders = append(v.Holders, fmt.Sprintf("%s %s", i.Role, i.Name))
		}
		views = append(views, v)
	}
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(views)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tITS CREDENTIALS\tHOLDERS")
	for _, v := range views {
		state := "valid"
		if v.Until != "" {
			state = "valid until " + v.Until
		}
		fmt.Fprintf(t, "%s\t%s\t%d\n", v.Key, state, len(v.Holders))
	}
	for _, v := range views {
		if v.Until != "" {
			for _, h := range v.Holders {
				fmt.Fprintf(t, "needs new credentials by %s: %s\n", v.Until, h)
			}
		}
	}
	return t.Flush()
}

func rotateCommand(f *flags) *cobra.Command {
	var overlap time.Duration
	cmd := &cobra.Command{Use: "rotate", Short: "replace the key that signs credentials", Args: args(0, "none"),
		Long: `rotate makes a new key, which signs all credentials and the keys of commands from now on. What the
present key has signed stays valid for --overlap; its private part is removed at once. A server
that runs on the same state_dir goes on within seconds: it renews its own credentials, and those of
agents when they ask, once a day. "quell-server keys" lists the holders that need new ones
by hand. An external NATS server needs the new output of "quell-server trust", now and after the
overlap, and new credentials first for servers, then for agents.

If the key was stolen, choose an overlap as short as the time in which you can replace all
credentials; with 0 all are invalid at once.`,
		Example: "  quell-server keys rotate\n  quell-server keys rotate --overlap 48h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := f.keys()
			if err != nil {
				return err
			}
			now := time.Now()
			if err := a.Rotate(overlap, now); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "the key was replaced; what the former one has signed is valid until %s\n", day(now.Add(overlap).Unix()))
			return err
		}}
	overlap = defaultOverlap
	cmd.Flags().Var((*sample.Duration)(&overlap), "overlap", "how long what the present key has signed stays valid")
	return cmd
}
