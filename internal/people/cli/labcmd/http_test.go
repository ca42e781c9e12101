package labcmd

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/lab/httpload"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

func TestLabHTTP(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "0123456789") }))
	defer s.Close()
	args := []string{"lab", "http", s.URL, "--duration", "500ms", "--warmup", "100ms", "--connections", "4"}
	var r httpload.Result
	got := quell(t, clitest.Env(""), append(args, "--rate", "100", "--json")...)
	if err := json.Unmarshal([]byte(got.Out), &r); err != nil || r.Sent != 50 || r.Done != 50 || r.Offered != 100 {
		t.Errorf("%v, %+v, %q", err, r, got.Err)
	}
	// Depending on the generator's share of the CPU, both exit codes are possible.
	text := quell(t, clitest.Env(""), append(args, "--rate", "100")...)
	if !strings.Contains(text.Out, "offered   100.0 requests/s") || !strings.Contains(text.Out, "50 started, 50 answered, 0 failed, 0 dropped") || (text.Code == app.ExitNegative) != strings.Contains(text.Err, "the generator was late") {
		t.Errorf("exit code %d\n%s%s", text.Code, text.Out, text.Err)
	}
	most := quell(t, clitest.Env(""), args...)
	stalled := strings.Contains(most.Err, "no good answer: no request ended in time") // on a machine that stood still for so long
	if (most.Code == app.ExitOK) != strings.Contains(most.Out, "the maximum: ") || (most.Code == app.ExitNegative) != stalled || !strings.Contains(most.Out, "   1 connections") {
		t.Errorf("exit code %d\n%s%s", most.Code, most.Out, most.Err)
	}
	s.Close()
	if gone := quell(t, clitest.Env(""), append(args, "--connections", "1")...); gone.Code != app.ExitNegative || !strings.Contains(gone.Err, "no good answer: connect") {
		t.Errorf("exit code %d\n%s", gone.Code, gone.Err)
	}
	if bad := quell(t, clitest.Env(""), "lab", "http", s.URL, "--rate", "0"); bad.Code != app.ExitUsage || !strings.Contains(bad.Err, "rate: 0: want more than 0") {
		t.Errorf("exit code %d\n%s", bad.Code, bad.Err)
	}
}
