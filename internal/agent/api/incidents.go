package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Query encodes an incident query as URL parameters.
func Query(q logbook.Query) url.Values {
	v := url.Values{}
	if q.Open {
		v.Set("open", "true")
	}
	if q.Since != 0 {
		v.Set("since", strconv.FormatInt(int64(q.Since), 10))
	}
	if q.Victim != "" {
		v.Set("victim", q.Victim)
	}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return v
}

// ParseQuery is the inverse of Query; omitted parameters have the zero value.
func ParseQuery(v url.Values) (q logbook.Query, err error) {
	bad := func(key, want string) error { return fmt.Errorf("query %s=%q: want %s", key, v.Get(key), want) }
	for key := range v {
		text := v.Get(key)
		switch key {
		case "open":
			if q.Open, err = strconv.ParseBool(text); err != nil {
				return q, bad(key, "true or false")
			}
		case "since":
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return q, bad(key, "milliseconds since 1970")
			}
			q.Since = sample.Millis(n)
		case "victim":
			q.Victim = text
		case "limit":
			if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 0 {
				return q, bad(key, "a number of incidents")
			}
		default:
			return q, bad(key, "one of id, open, since, victim, limit")
		}
	}
	return q, nil
}

// Incidents are the incidents that match a query, oldest first, without the points of
// their charts (Times, VictimCost, Usage).
type Incidents struct {
	Incidents []incident.Record `json:"incidents"`
	Older     int               `json:"older"` // number that the limit left out
}

// IncidentsHandler answers PathIncidents from a log, which has the newest record of
// every incident, open ones included.
func IncidentsHandler(b *logbook.Book) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		args := r.URL.Query()
		if id := args.Get("id"); id != "" {
			inc, err := b.Incident(id)
			var many *logbook.AmbiguousError
			switch {
			case errors.As(err, &many):
				Fail(w, http.StatusNotFound, err, "give more of its ID")
			case errors.Is(err, logbook.ErrNotFound):
				Fail(w, http.StatusNotFound, err, "see `quell incidents`")
			case err != nil:
				Fail(w, http.StatusInternalServerError, err, "")
			default:
				Reply(w, http.StatusOK, inc)
			}
			return
		}
		q, err := ParseQuery(args)
		if err != nil {
			Fail(w, http.StatusBadRequest, err, "")
			return
		}
		list, older, err := b.List(q)
		if err != nil {
			Fail(w, http.StatusInternalServerError, err, "")
			return
		}
		Reply(w, http.StatusOK, Incidents{list, older})
	}
}

// Reply answers with a value as JSON.
func Reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error here means that the peer has gone; it cannot be reported.
	_ = json.NewEncoder(w).Encode(v)
}

// Fail answers with a Failure.
func Fail(w http.ResponseWriter, status int, err error, remedy string) {
	Reply(w, status, Failure{Error: err.Error(), Remedy: remedy})
}
