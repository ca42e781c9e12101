package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/atomicfile"
)

// roles are the roles for which credentials can be requested.
var roles = []string{string(authority.Agent), string(authority.Viewer), string(authority.Server)}

// keys opens the authority of the configuration.
func (f *flags) keys() (*authority.Authority, error) {
	c, err := f.Load()
	if err != nil {
		return nil, err
	}
	// A file of another user in it would be unreadable for the server.
	if err := atomicfile.OwnDir(c.StateDir); err != nil {
		return nil, daemon.Usage(fmt.Errorf("state_dir: %w", err))
	}
	return authority.Load(keysDir(c))
}

// keysFor is keys for a command on credentials of a role.
func (f *flags) keysFor(word string) (*authority.Authority, authority.Role, error) {
	if !slices.Contains(roles, word) {
		return nil, "", daemon.Usage(fmt.Errorf("%q: want %s", word, strings.Join(roles, ", ")))
	}
	a, err := f.keys()
	return a, authority.Role(word), err
}

func credentialsCommand(f *flags) *cobra.Command {
	var ttl, enrol time.Duration
	cmd := &cobra.Command{Use: "credentials agent|viewer|server NAME", Short: "make credentials for the bus", Args: args(2, strings.Join(roles, ", ")+", and a NAME"),
		Long: `credentials prints credentials in NATS's format. With an agent's credentials it can publish as
the machine NAME and no other. They are signed by keys in the server's state_dir, which also has
a record of all signed credentials, so that they can be revoked.

An agent has its credentials renewed before --ttl ends, for a key that it makes itself. With
--enrol, the printed ones are valid only for that time, and the agent replaces them when it
first connects.`,
		Example: "  quell-server credentials agent host-17 --ttl 2160h > host-17.creds\n  quell-server credentials agent host-17 --ttl 2160h --enrol 1h > host-17.creds",
		RunE: func(cmd *cobra.Command, args []string) error {
			a, role, err := f.keysFor(args[0])
			if err != nil {
				return err
			}
			var text []byte
			switch {
			case enrol == 0:
				text, err = a.Issue(role, args[1], ttl)
			case role != authority.Agent || ttl <= 0 || enrol < 0:
				return daemon.Usage(errors.New("--enrol: want an agent, and a --ttl for the credentials that it gets"))
			default:
				text, err = a.Enrol(args[1], enrol, ttl)
			}
			if err == nil {
				err = a.Sync()
			}
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		}}
	cmd.Flags().Var((*sample.Duration)(&ttl), "ttl", "how long they are valid, e.g. 2160h; 0: forever")
	cmd.Flags().Var((*sample.Duration)(&enrol), "enrol", "how long the printed ones are valid, e.g. 1h: an agent replaces them when it first connects; 0: as --ttl")
	cmd.AddCommand(issuedCommand(f))
	return cmd
}

func issuedCommand(f *flags) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{Use: "list", Short: "list the credentials that were made", Args: args(0, "none"),
		Example: "  quell-server credentials list\n  quell-server credentials list --json | jq '.[] | select(.state | startswith(\"good\"))'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := f.keys()
			if err != nil {
				return err
			}
			all, err := a.Issued()
			if err != nil {
				return err
			}
			type view struct {
				Role   authority.Role `json:"role"`
				Name   string         `json:"name"`
				Issued string         `json:"issued"`
				State  string         `json:"state"`
			}
			views := []view{}
			for _, i := range all {
				views = append(views, view{i.Role, i.Name, day(i.At), state(i, time.Now())})
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(views)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ROLE\tNAME\tISSUED\tSTATE")
			for _, v := range views {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", v.Role, v.Name, v.Issued, v.State)
			}
			return w.Flush()
		}}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON instead of text for people")
	return cmd
}

func day(seconds int64) string { return time.Unix(seconds, 0).UTC().Format(time.RFC3339) }

// state describes the current validity of credentials.
func state(i authority.Issued, now time.Time) string {
	switch {
	case i.Revoked != 0:
		return "revoked " + day(i.Revoked)
	case i.Expires != 0 && i.Expires <= now.Unix():
		return "ended " + day(i.Expires)
	case i.Expires != 0:
		return "good until " + day(i.Expires)
	}
	return "good"
}

func revokeCommand(f *flags) *cobra.Command {
	return &cobra.Command{Use: "revoke agent|viewer|server NAME", Short: "revoke credentials for the bus", Args: args(2, strings.Join(roles, ", ")+", and a NAME"),
		Long: `revoke revokes all credentials that were made for NAME in that role. A server that runs on the
same state_dir disconnects their users within seconds. An external NATS server needs the new
output of "quell-server trust". New credentials for the same NAME can be made at once.
A token for the API is revoked by removing its line from tokens_file.`,
		Example: "  quell-server revoke agent host-17",
		RunE: func(cmd *cobra.Command, args []string) error {
			a, role, err := f.keysFor(args[0])
			if err != nil {
				return err
			}
			n, err := a.Revoke(role, args[1], time.Now())
			if err != nil {
				return err
			}
			if n == 0 {
				return fmt.Errorf("revoke: no valid credentials of %s %s; see quell-server credentials list", role, args[1])
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d credentials of %s %s revoked\n", n, role, args[1])
			return err
		}}
}

func trustCommand(f *flags) *cobra.Command {
	return &cobra.Command{Use: "trust", Short: "print the configuration for an external NATS server", Args: args(0, "none"),
		Long: `trust prints the part of a nats-server's configuration that accepts only credentials signed by
this server's keys. It contains no secret.`,
		Example: "  quell-server trust > /etc/nats/quell.conf     # include it in nats-server.conf, then: nats-server --signal reload",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := f.keys()
			if err != nil {
				return err
			}
			t, err := a.Trust()
			if err != nil {
				return err
			}
			text := fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {\n", t.Operator, t.System)
			for _, key := range slices.Sorted(maps.Keys(t.JWTs)) {
				text += fmt.Sprintf("  %s: %s\n", key, t.JWTs[key])
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), text+"}\n")
			return err
		}}
}
