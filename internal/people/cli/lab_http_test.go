package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/lab/httpload"
)

func TestLabHTTP(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "0123456789") }))
	defer s.Close()
	args := []string{"lab", "http", s.URL, "--duration", "500ms", "--warmup", "100ms", "--connections", "4"}
	var r httpload.Result
	got := quell(t, utf8(""), append(args, "--rate", "100", "--json")...)
	if err := json.Unmarshal([]byte(got.out), &r); err != nil || r.Sent != 50 || r.Done != 50 || r.Offered != 100 {
		t.Errorf("%v, %+v, %q", err, r, got.err)
	}
	// Depending on the generator's share of the CPU, both exit codes are possible.
	text := quell(t, utf8(""), append(args, "--rate", "100")...)
	if !strings.Contains(text.out, "offered   100.0 requests/s") || !strings.Contains(text.out, "50 started, 50 answered, 0 failed, 0 dropped") || (text.code == exitNegative) != strings.Contains(text.err, "the generator was late") {
		t.Errorf("exit code %d\n%s%s", text.code, text.out, text.err)
	}
	most := quell(t, utf8(""), args...)
	if most.code != exitOK || !strings.Contains(most.out, "   1 connections") || !strings.Contains(most.out, "the maximum: ") {
		t.Errorf("exit code %d\n%s%s", most.code, most.out, most.err)
	}
	s.Close()
	if gone := quell(t, utf8(""), append(args, "--connections", "1")...); gone.code != exitNegative || !strings.Contains(gone.err, "no good answer; the first error: connect") {
		t.Errorf("exit code %d\n%s", gone.code, gone.err)
	}
	if bad := quell(t, utf8(""), "lab", "http", s.URL, "--rate", "0"); bad.code != exitUsage || !strings.Contains(bad.err, "rate: 0: want more than 0") {
		t.Errorf("exit code %d\n%s", bad.code, bad.err)
	}
}
