package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/cluster/bus/load"
)

// TestLoad simulates machines against a server in this process: everything acknowledged
// is found by SQL. With time to drain, each machine sends what it makes in a second, also one that
// was not run in that second.
func TestLoad(t *testing.T) {
	t.Parallel()
	r := start(t)
	out, err := quellServer(t, "load", "--machines", "5", "--tasks", "4", "--period", "100ms", "--for", "1s", "--drain", "1m", "--json", "--set", "state_dir="+r.state,
		"--url", "nats://"+r.bus, "--api", "http://"+r.api)
	if err != nil {
		t.Fatal(err)
	}
	var got load.Result
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if got.Server == nil || got.Acknowledged == 0 || got.Server.Committed != float64(got.Acknowledged) || got.Server.StoredBytes <= 0 {
		t.Errorf("%s", out)
	}
	want, err := json.Marshal([]any{got.Acknowledged, 5, 20})
	if err != nil {
		t.Fatal(err)
	}
	if rows := r.sql("SELECT count(*), count(DISTINCT machine), count(DISTINCT task) FROM samples"); rows != string(want) {
		t.Errorf("SQL says %s, want %s", rows, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"load --machines 0": "--machines 0: want 1 to", "load --tasks 3000": "--tasks 3000", "load --period 1ms": "--period 1ms", "load --for 1ms": "--for 1ms",
		"load x": "want none", "load --machines 99999": "open files", "load --for 1s --token-file /nowhere": "/nowhere",
	} {
		set := []string{"--set", "state_dir=" + t.TempDir()}
		if _, err := quellServer(t, append(strings.Fields(line), set...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
