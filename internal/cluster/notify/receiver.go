package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// receiver is where notifications go.
type receiver struct {
	name, url, token string
	repeats          bool // it forgets what it is not told again
	body             func(now time.Time, all []*Event) any
}

// attempts and pause bound what a receiver that is down costs: a minute, in which others wait.
const attempts, pause = 4, time.Second

// newClient makes a client that follows no redirect: the token is for the configured address.
func newClient(t http.RoundTripper) *http.Client {
	return &http.Client{Transport: t, Timeout: 10 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// post sends events, again after a pause if the receiver is not there or overloaded.
func (r *receiver) post(ctx context.Context, client *http.Client, now time.Time, all []*Event) error {
	body, err := json.Marshal(r.body(now, all))
	if err != nil {
		return fmt.Errorf("encode notification: %w", err)
	}
	for i := range attempts {
		if i > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause << (i - 1)):
			}
		}
		retry := false
		if retry, err = r.try(ctx, client, body); !retry {
			return err
		}
	}
	return err
}

// try sends a body once; retry: it may work later.
func (r *receiver) try(ctx context.Context, client *http.Client, body []byte) (retry bool, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	q.Header.Set("Content-Type", "application/json")
	if r.token != "" {
		q.Header.Set("Authorization", "Bearer "+r.token)
	}
	a, err := client.Do(q)
	if err != nil {
		return ctx.Err() == nil, err
	}
	defer a.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(a.Body, 200))
	if a.StatusCode/100 == 2 {
		return false, nil
	}
	return a.StatusCode == http.StatusTooManyRequests || a.StatusCode >= 500, fmt.Errorf("%s: %.200q", a.Status, said)
}

// webhook is the document for a webhook: one event.
func webhook(_ time.Time, all []*Event) any { return all[0] }

// alertmanager is the body of a POST to Alertmanager's /api/v2/alerts.
func alertmanager(now time.Time, all []*Event) any {
	type alert struct {
		Labels       map[string]string `json:"labels"`
		Annotations  map[string]string `json:"annotations"`
		StartsAt     time.Time         `json:"startsAt"`
		EndsAt       time.Time         `json:"endsAt"`
		GeneratorURL string            `json:"generatorURL,omitempty"`
	}
	alerts := make([]alert, len(all))
	for i, e := range all {
		a := alert{StartsAt: e.Opened, EndsAt: now.Add(lasts), GeneratorURL: e.Link,
			Labels: map[string]string{"alertname": "QuellIncident", "severity": "warning", "machine": e.Machine, "signal": e.Signal,
				"victim": e.Victim.Job, "suspect": e.Suspect.Job, "incident": e.ID},
			Annotations: map[string]string{"summary": e.Text, "level": e.Level, "victim_task": e.Victim.Task, "suspect_task": e.Suspect.Task,
				"advice": e.Advice, "outcome": e.Outcome}}
		if !e.Closed.IsZero() {
			a.EndsAt = e.Closed
		}
		alerts[i] = a
	}
	return alerts
}
