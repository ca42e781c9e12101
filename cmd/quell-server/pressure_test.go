package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/load"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestAgentsWaitForASlowStore: a store that does not commit, as one with a full disk. The server
// acknowledges nothing, holds one delivery of each agent and no more, and stops reading them.
// Agents keep what they make meanwhile. When the store works again, all of it is stored, once.
func TestAgentsWaitForASlowStore(t *testing.T) {
	t.Parallel()
	r := start(t, "store.max_pending=1000")
	// A file in place of a folder fails as a full disk does, at the first write.
	blocked := filepath.Join(r.state, "store", store.Samples)
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const machines, tasks = 100, 100
	var now atomic.Pointer[load.Progress]
	ended := make(chan *load.Result, 1)
	go func() {
		got, err := load.Run(t.Context(), load.Options{Machines: machines, Tasks: tasks, Period: 100 * time.Millisecond, For: 2 * time.Second, Drain: 4 * time.Minute,
			Finish: time.Minute, Settle: time.Minute, Every: time.Second, URL: "nats://" + r.bus,
			Meter:    load.MeterURL(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http://"+r.api+"/metrics", ""),
			Progress: func(p load.Progress) { now.Store(&p) },
			Credentials: func(machine string) (string, error) {
				a, err := authority.Load(filepath.Join(r.state, "keys"))
				if err != nil {
					return "", err
				}
				text, err := a.Issue(authority.Agent, machine, time.Hour)
				path := filepath.Join(r.state, machine+".creds")
				if err == nil {
					err = os.WriteFile(path, text, 0o600)
				}
				return path, err
			}})
		if err != nil {
			t.Error(err)
		}
		ended <- got
	}()
	const inFlight = machines * tasks // samples: one batch of each machine, until there was an answer
	const made = inFlight * 20
	quelltest.Until(t, "machines have made all of theirs, and the server holds one batch of each", func() bool {
		p := now.Load()
		return p != nil && p.Waiting >= made && p.Usage.Pending >= 2000 && p.Usage.Waiting > 0
	})
	p := now.Load()
	// Reading stops at 2 × store.max_pending; one read is of at most maxFetch messages.
	if p.Acknowledged != 0 || p.Usage.Pending > 2000+maxFetch*tasks || p.Usage.Pending >= inFlight || p.Usage.Waiting > inFlight*200 || p.Usage.Oldest <= 0 {
		t.Errorf("while nothing is committed: %+v", p)
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	got := <-ended
	if got == nil {
		t.FailNow()
	}
	if got.Acknowledged != made || got.Left != 0 || got.Server.Committed != made || got.Server.Rejected != 0 {
		t.Errorf("of %d samples: %+v, %+v", made, got, got.Server)
	}
	if got.Deliveries >= got.Batches/2 {
		t.Errorf("%d batches that had waited came in %d deliveries", got.Batches, got.Deliveries)
	}
	want, err := json.Marshal([]any{made, made})
	if err != nil {
		t.Fatal(err)
	}
	if rows := r.sql("SELECT count(*), count(DISTINCT (machine, task, ts)) FROM samples"); rows != string(want) {
		t.Errorf("SQL says %s, want %s", rows, want)
	}
}
