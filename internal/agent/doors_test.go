package agent

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/testkit/commandtest"
)

// A command is judged alike, with the same messages, at the agent's socket and over the
// bus. The server's API and the command line have this test too.
func TestCommandsAtTheAgentsDoors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		doors := map[string]func(r *governed, c commandtest.Case) (ok, invalid bool, message string){
			"socket": func(r *governed, c commandtest.Case) (bool, bool, string) {
				status, body := r.call("POST", api.PathCommands, c.JSON)
				var said struct{ Message, Error string }
				if err := json.Unmarshal(body, &said); err != nil {
					t.Fatalf("%s: %v in %s", c.Name, err, body)
				}
				return status == http.StatusOK, status == http.StatusBadRequest, said.Message + said.Error
			},
			"bus": func(r *governed, c commandtest.Case) (bool, bool, string) {
				var parsed command.Command
				if api.Decode(strings.NewReader(c.JSON), &parsed) != nil || parsed.Kind() == "" || parsed.Reset != nil || parsed.For != 0 {
					return c.Want == "", c.Want != "", c.Want // no message can express that
				}
				reply := r.decide(parsed)
				return reply.Ok, strings.Contains(reply.Message, "want "), reply.Message
			},
		}
		for door, give := range doors {
			r := govern(newRig(t, newMachine(t), t.TempDir()))
			r.add("/batch/job-1", 0.5)
			r.start()
			for _, c := range commandtest.Cases() {
				if c.JSON == "" {
					continue // JSON cannot express it
				}
				want := c.Want + c.Agent
				ok, invalid, message := give(r, c)
				if ok != (want == "") || invalid != (c.Want != "") || !strings.Contains(message, want) {
					t.Errorf("%s, %s: ok %t, invalid %t: %q, want %q", door, c.Name, ok, invalid, message, want)
				}
			}
			if door == "socket" && len(r.status().Caps) != 1 {
				t.Errorf("caps %+v, want that of job alone", r.status().Caps)
			}
			r.stop()
		}
	})
}
