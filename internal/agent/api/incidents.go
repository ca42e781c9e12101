package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"

	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/format/keyed"
)

// Query encodes an incident query as URL parameters.
func Query(q logbook.Query) url.Values {
	v := url.Values{}
	keyed.Walk(&q, func(key string, _ reflect.StructField, value reflect.Value) {
		if !value.IsZero() {
			v.Set(key, fmt.Sprint(value))
		}
	})
	return v
}

// ParseQuery is the inverse of Query; omitted parameters have the zero value.
func ParseQuery(v url.Values) (q logbook.Query, err error) {
	var r keyed.Reader
	for _, key := range slices.Sorted(maps.Keys(v)) {
		r.Set(&q, key, v.Get(key), "query")
	}
	for _, p := range append(r.Problems, keyed.Check("", &q)...) {
		err = errors.Join(err, errors.New(p.String()))
	}
	return q, err
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
