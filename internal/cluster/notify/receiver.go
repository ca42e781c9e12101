package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
)

// receiver is where notifications go.
type receiver struct {
	status  Status
	client  *http.Client
	queue   *Queue[*Event] // nil in it: tell it again what fires
	repeats bool           // it forgets what it is not told again
	wants   func(*Event) bool
	// messages are the requests for some events.
	messages func(all []*Event) []message
	fires    func() []*Event
}

// message is a request: what is posted, and how many events it tells.
type message struct {
	url    string
	body   any
	events int
}

func always(*Event) bool { return true }

// open makes the receivers that are configured.
func (n *Notifier) open() error {
	c := &n.Config
	hook, err := c.Webhook.URL, error(nil)
	if c.Webhook.URLFile != "" {
		if hook, err = readURL(c.Webhook.URLFile, c.Webhook.TokenFile); err != nil {
			return fmt.Errorf("notify.webhook.url_file: %w", err)
		}
	}
	alerts := strings.TrimSuffix(c.Alertmanager.URL, "/") + "/api/v2/alerts"
	instance, err := os.Hostname()
	if err != nil {
		return err
	}
	events := func(all []*Event) []message { return kubernetesEvents(c.Kubernetes.URL, instance, n.Now(), all) }
	for _, r := range []struct {
		name, url string
		peer      *config.ServerPeer
		repeats   bool
		wants     func(*Event) bool
		messages  func([]*Event) []message
	}{
		{"webhook", hook, &c.Webhook.ServerPeer, false, always, func(all []*Event) []message { return documents(hook, all) }},
		{"alertmanager", c.Alertmanager.URL, &c.Alertmanager.ServerPeer, true, always, func(all []*Event) []message {
			return []message{{alerts, alertsOf(n.Now(), all), len(all)}}
		}},
		{"kubernetes", c.Kubernetes.URL, &c.Kubernetes.ServerPeer, false, func(e *Event) bool { return e.Victim.pod.name != "" }, events},
	} {
		if r.url == "" {
			continue
		}
		client, err := NewClient("notify."+r.name, r.peer)
		if err != nil {
			return err
		}
		n.receivers = append(n.receivers, &receiver{status: Status{Name: r.name, Results: n.Results, Log: n.Log}, client: client,
			queue: NewQueue[*Event](r.name, n.Results), repeats: r.repeats, wants: r.wants, messages: r.messages, fires: n.fires})
	}
	return nil
}

// readURL reads a URL that is a secret.
func readURL(file, tokenFile string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	at := strings.TrimSpace(string(text))
	if want := config.CheckHTTP(at, tokenFile); want != "" {
		return "", fmt.Errorf("%s: want %s", file, want)
	}
	return at, nil
}

// deliver sends events. A nil one stands for all that fire now.
func (r *receiver) deliver(ctx context.Context, all []*Event) {
	var events []*Event
	repeat := false
	for _, e := range all {
		if e == nil {
			repeat = true
		} else {
			events = append(events, e)
		}
	}
	if repeat {
		events = append(events, r.fires()...)
	}
	if len(events) == 0 {
		return
	}
	for _, m := range r.messages(events) {
		body, err := json.Marshal(m.body)
		if err == nil {
			err = post(ctx, r.client, m.url, body)
		}
		if ctx.Err() != nil {
			return
		}
		r.status.Note(m.events, err)
	}
}

// documents are the requests to a webhook: one for each event.
func documents(url string, all []*Event) (ms []message) {
	for _, e := range all {
		ms = append(ms, message{url, e, 1})
	}
	return ms
}

// alert is an alert of Alertmanager's API, version 2.
type alert struct {
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       time.Time         `json:"endsAt"`
	GeneratorURL string            `json:"generatorURL,omitempty"`
}

// alertsOf is the body of a POST to Alertmanager's /api/v2/alerts. Alertmanager refuses all of it
// if one alert ends before it starts.
func alertsOf(now time.Time, all []*Event) []alert {
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
