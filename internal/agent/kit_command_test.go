package agent

import (
	"encoding/json"
	"net/http"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
)

// do sends a command that must succeed.
func (r *rig) do(c command.Command) api.Done {
	r.t.Helper()
	status, body := r.call("POST", api.PathCommands, c)
	var d api.Done
	if err := json.Unmarshal(body, &d); status != http.StatusOK || err != nil || d.Message == "" {
		r.t.Fatalf("%s: %d %s", c.String(), status, body)
	}
	return d
}

// refused sends a command, or a body, that must be refused, and returns the reason.
func (r *rig) refused(in any, want int) string {
	r.t.Helper()
	status, body := r.call("POST", api.PathCommands, in)
	var f api.Failure
	if err := json.Unmarshal(body, &f); status != want || err != nil || f.Error == "" {
		r.t.Fatalf("%+v: %d %s; want a refusal with %d", in, status, body, want)
	}
	return f.Error
}

func capping(t command.Target, rate float64, lease, why string) command.Command {
	c := command.Cap{Target: t, Terms: command.Terms{Rate: rate}}
	if err := c.For.UnmarshalText([]byte(lease)); err != nil {
		panic(err)
	}
	return command.Command{Why: why, Cap: &c}
}

func uncapping(t command.Target, why string) command.Command {
	return command.Command{Why: why, Uncap: &t}
}

func protecting(t command.Target, on bool, why string) command.Command {
	if on {
		return command.Command{Why: why, Protect: &t}
	}
	return command.Command{Why: why, Unprotect: &t}
}

func enforcing(mode, why string) command.Command {
	return command.Command{Why: why, Enforcement: &command.Enforcement{Mode: mode}}
}
