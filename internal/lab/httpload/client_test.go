package httpload

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// output is a part's output as it arrives.
type output struct{ quelltest.Output }

// said parses a client's output: the answers of all slices, and its values.
func (o *output) said(t *testing.T) (answers int, values map[string]float64) {
	t.Helper()
	values = map[string]float64{}
	for line := range strings.Lines(o.String()) {
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, role.IterationLine):
			n, err := strconv.Atoi(f[4])
			if err != nil || len(f) != 5 {
				t.Fatalf("%q: %v", line, err)
			}
			answers += n
		case strings.HasPrefix(line, role.ValueLine):
			v, err := strconv.ParseFloat(f[3], 64)
			if err != nil || len(f) != 4 {
				t.Fatalf("%q: %v", line, err)
			}
			values[f[2]] = v
		}
	}
	return answers, values
}

// A client begins at the barrier, counts after its warm-up, prints its values, and goes
// on until it is told to end.
func TestClient(t *testing.T) {
	for _, rate := range []float64{0, 200} {
		synctest.Test(t, func(t *testing.T) {
			o := serve(t, worker(2*time.Millisecond, 0, 0))
			o.Warmup, o.Duration = time.Second, 4*time.Second
			in, stdin := io.Pipe()
			var out output
			done := make(chan error, 1)
			go func() { done <- at(o, rate).Play(t.Context(), in, &out) }()
			synctest.Wait()
			if n, v := out.said(t); n > 0 || len(v) > 0 {
				t.Errorf("before the barrier: %d answers, %v", n, v)
			}
			if _, err := stdin.Write([]byte("\n")); err != nil {
				t.Fatal(err)
			}
			serving(8 * time.Second)
			stdin.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
			want := map[float64]float64{0: 500, 200: 200}[rate]
			n, v := out.said(t)
			near(t, "rate", v[role.HTTPRate], want, 2)
			near(t, "offered", v[role.HTTPOffered], rate, 0)
			// It runs for 8 s; only part of that is counted.
			near(t, "answers", float64(n), 8*want, 0.05*8*want)
			if v[role.HTTPP99] <= 0 || v[role.HTTPErrors] != 0 || v[role.SaturatedValue] != 0 {
				t.Errorf("%v", v)
			}
		})
	}
}

func TestClientIsCalledOff(t *testing.T) {
	var out output
	if err := (Options{URL: "http://127.0.0.1:1/", Connections: 1, Duration: time.Second}).Play(t.Context(), strings.NewReader(""), &out); err != nil || out.String() != "" {
		t.Errorf("%v, %q", err, out.String())
	}
}

// A server that is not there is not measured.
func TestClientFindsNobody(t *testing.T) {
	r := Result{Sent: 1000, Errors: Errors{Connect: 10}, finished: 990}
	if v, ok := r.Values()[role.UnreachableValue]; ok {
		t.Errorf("one in a hundred: %v", v)
	}
	if r.Errors.Connect++; r.Values()[role.UnreachableValue] != 11 {
		t.Errorf("%v", r.Values())
	}
	if v := (&Result{Sent: 7, Errors: Errors{Timeout: 7}}).Values(); v[role.UnreachableValue] != 7 {
		t.Errorf("no answer at all: %v", v)
	}
}

// The server counts fresh connections, and an unsigned certificate is accepted only
// with Insecure.
func TestFreshAndInsecure(t *testing.T) {
	var mu sync.Mutex
	from := map[string]bool{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		from[r.RemoteAddr] = true
		mu.Unlock()
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	// Of an open loop each request is answered, however long that takes here.
	const requests = 10
	o := Options{URL: s.URL, Connections: 2, Rate: 20, Duration: requests * 50 * time.Millisecond, Timeout: 4 * time.Minute, Insecure: true}
	connections := func() int {
		mu.Lock()
		defer mu.Unlock()
		defer clear(from)
		return len(from)
	}
	for _, fresh := range []bool{false, true} {
		o.Fresh = fresh
		r, err := Run(t.Context(), o)
		if err != nil || r.Done != requests || r.Errors.Sum() != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		if n := connections(); fresh && n != requests || !fresh && n > o.Connections {
			t.Errorf("fresh %v: %d answers over %d connections", fresh, r.Done, n)
		}
	}
	o.Insecure = false
	if r, err := Run(t.Context(), o); err != nil || r.Done != 0 || r.Errors.Connect != requests {
		t.Errorf("an unknown certificate was taken: %+v, %v", r, err)
	}
}
