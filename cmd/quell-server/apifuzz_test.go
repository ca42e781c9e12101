package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	fuzzTime = flag.Duration("for", time.Second, "how long TestAPIFuzz sends requests")
	fuzzSeed = flag.Uint64("seed", 1, "of TestAPIFuzz's requests; 0: any")
	callers  = flag.Int("callers", 4, "concurrent requests of TestAPIFuzz")
)

// maxWrong is the number of errors after which TestAPIFuzz stops.
const maxWrong = 20

// TestAPIFuzz sends valid and invalid requests, derived from the server's own OpenAPI
// document, and checks every answer. No answer may be a server error, be undocumented, or
// differ from the documented schema. The server must still run afterwards, and stop.
func TestAPIFuzz(t *testing.T) {
	seed := *fuzzSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("%s, -seed %d", *fuzzTime, seed)
	f := startFuzzed(t)
	_, text := f.get("/openapi.json")
	operations, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	until, cancel := context.WithTimeout(t.Context(), *fuzzTime)
	defer cancel()
	var all sync.WaitGroup
	for i := range *callers {
		all.Go(func() {
			g := &generator{rand.New(rand.NewPCG(seed, uint64(i))), operations}
			for until.Err() == nil {
				r := g.request()
				status, wrong := f.judge(until, r)
				if until.Err() == nil && f.add(r.op.name, status, wrong) == maxWrong {
					cancel()
				}
			}
		})
	}
	all.Wait()
	for _, op := range slices.Sorted(maps.Keys(f.answers)) {
		t.Logf("%-32s %s", op, strings.Trim(fmt.Sprint(f.answers[op]), "map[]"))
	}
	if status, text := f.get("/healthz"); status != http.StatusOK {
		t.Errorf("afterwards /healthz answers %d: %s", status, text)
	}
	f.client.CloseIdleConnections()
	f.stop()
	select {
	case err := <-f.ended:
		if err != nil {
			t.Errorf("the server ended with %v", err)
		}
		f.stop = nil
	case <-time.After(4 * time.Minute):
		t.Error("the server does not stop")
	}
}

// fuzzed is a server under test, with what it answered.
type fuzzed struct {
	*guarded
	client  http.Client
	mu      sync.Mutex
	answers map[string]map[int]int // by operation and status
	wrong   int
}

// startFuzzed starts a server with samples, so that queries have data to read.
func startFuzzed(t *testing.T) *fuzzed {
	t.Helper()
	f := &fuzzed{answers: map[string]map[int]int{}, client: http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{}}}
	f.guarded = startGuarded(t, "query.time=1s", "query.memory_mb=64", "limits.per_second=100000", "limits.burst=100000")
	f.secret["stranger"] = "of nothing"
	f.end()
	var text strings.Builder
	text.WriteString("ts,machine,job,task,platform,signal,variant,class,cpu,cost,coverage,flags\n")
	for i := range 500 {
		fmt.Fprintf(&text, "%d,m%d,web,/web/%d,p,cpi,v,batch,1,%g,1,\n", time.Now().UnixMilli()-int64(i)*1000, i%3, i%10, 1+float64(i%7)/10)
	}
	samples := filepath.Join(t.TempDir(), "samples.csv")
	if err := os.WriteFile(samples, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := quellServer(t, "import", "--set", "state_dir="+f.state, samples); err != nil {
		t.Fatal(err)
	}
	f.begin()
	t.Cleanup(f.client.CloseIdleConnections)
	return f
}

// add counts an answer, reports an error in it, and returns the number of errors.
func (f *fuzzed) add(op string, status int, wrong string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answers[op] == nil {
		f.answers[op] = map[int]int{}
	}
	f.answers[op][status]++
	if wrong != "" {
		f.wrong++
		f.t.Error(wrong)
	}
	return f.wrong
}

// judge sends a request; wrong describes an error in the answer.
func (f *fuzzed) judge(ctx context.Context, q request) (status int, wrong string) {
	complain := func(format string, args ...any) string {
		return fmt.Sprintf("%s%s?%s %.300q: ", q.op.name, q.method+q.path, q.query, q.body) + fmt.Sprintf(format, args...)
	}
	method, path := q.op.method, q.op.path
	if q.method != "" {
		method = q.method
	}
	if q.path != "" {
		path = q.path
	}
	if path == "/v1/events" { // the stream does not end
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		ctx = short
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+f.api, strings.NewReader(q.body))
	if err != nil {
		return 0, ""
	}
	r.URL.Opaque = "//" + r.URL.Host + path // the raw path
	r.URL.RawQuery = q.query
	if q.user != "" {
		r.Header.Set("Authorization", "Bearer "+f.secret[q.user])
	}
	r.Header.Set("Content-Type", "application/json")
	for k, v := range q.header {
		r.Header.Set(k, v)
	}
	answer, err := f.client.Do(r)
	if err != nil {
		if ctx.Err() != nil || strings.Contains(err.Error(), "invalid") {
			return 0, ""
		}
		return 0, complain("%v", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		if ctx.Err() != nil {
			return answer.StatusCode, ""
		}
		return answer.StatusCode, complain("read the answer: %v", err)
	}
	if why := check(q, answer, text); why != "" {
		wrong = complain("%d: %s; %.300s", answer.StatusCode, why, text)
	}
	return answer.StatusCode, wrong
}

// check returns how an answer differs from the document; "" if it does not.
func check(q request, answer *http.Response, text []byte) string {
	status := answer.StatusCode
	form, documented := q.op.answers[strconv.Itoa(status)]
	asDocumented := q.method == "" && q.path == ""
	switch {
	case status == http.StatusRequestHeaderFieldsTooLarge:
		return "" // by net/http, before any handler
	case status == http.StatusInternalServerError, status > 500 && !documented:
		return "a server error"
	case !asDocumented:
		return ""
	case !documented:
		return "not documented"
	case q.op.scope && status == http.StatusOK && q.user != "olga" && q.user != "victor":
		return "accepted without a valid token"
	case !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/json"):
		return ""
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return "invalid JSON"
	}
	return differs(v, form["application/json"].Schema, "answer")
}

// goTypes are the types of JSON's values in Go, by the type of a schema.
var goTypes = map[any]string{"object": "map[string]interface {}", "array": "[]interface {}", "string": "string", "boolean": "bool", "integer": "float64", "number": "float64"}

// differs returns how a value differs from a schema; "" if it does not. A property may be
// null, which the schemas do not mention.
func differs(v any, schema object, at string) string {
	if want := goTypes[schema["type"]]; want != "" && want != fmt.Sprintf("%T", v) {
		return fmt.Sprintf("%s is %T, not %s", at, v, schema["type"])
	}
	switch v := v.(type) {
	case object:
		required, _ := schema["required"].([]any)
		for _, key := range required {
			if _, there := v[fmt.Sprint(key)]; !there {
				return fmt.Sprintf("%s has no %s", at, key)
			}
		}
		properties, _ := schema["properties"].(object)
		for key, of := range properties {
			if v[key] == nil {
				continue
			}
			if why := differs(v[key], of.(object), at+"."+key); why != "" {
				return why
			}
		}
	case []any:
		items, _ := schema["items"].(object)
		for i := range v {
			if why := differs(v[i], items, fmt.Sprintf("%s[%d]", at, i)); why != "" {
				return why
			}
		}
	}
	return ""
}
