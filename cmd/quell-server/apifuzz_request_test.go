package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
)

// object is a part of the document.
type object = map[string]any

// operation is an operation of the document.
type operation struct {
	name         string // GET /v1/specs
	method, path string
	params       []string
	body         object                      // schema; nil: none
	answers      map[string]map[string]media // by status and media type
	scope        bool                        // requires a token
}

type media struct{ Schema object }

// parse returns the operations of an OpenAPI document.
func parse(text string) (all []operation, err error) {
	var raw struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name string }
			Responses  map[string]struct{ Content map[string]media }
			Security   []object
			Body       *struct{ Content map[string]media } `json:"requestBody"`
		}
	}
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	for path, item := range raw.Paths {
		for method, op := range item {
			o := operation{method: strings.ToUpper(method), path: path, answers: map[string]map[string]media{}, scope: op.Security != nil}
			o.name = o.method + " " + path
			for _, p := range op.Parameters {
				o.params = append(o.params, p.Name)
			}
			for status, r := range op.Responses {
				o.answers[status] = r.Content
			}
			if op.Body != nil {
				o.body = op.Body.Content["application/json"].Schema
			}
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b operation) int { return strings.Compare(a.name, b.name) })
	if len(all) == 0 {
		return nil, errors.New("read the document: it has no operations")
	}
	return all, nil
}

// request is a request to be sent.
type request struct {
	op     operation
	method string // replaces the operation's, if set
	path   string // likewise
	query  string
	body   string
	user   string // whose token is sent
	header map[string]string
}

// generator makes requests: three quarters as documented, with extreme values, the rest
// with an error in them.
type generator struct {
	*rand.Rand
	operations []operation
}

func (g *generator) one(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g *generator, all ...T) T { return all[g.IntN(len(all))] }

func (g *generator) request() request {
	r := request{op: pick(g, g.operations...)}
	q := url.Values{}
	for _, name := range r.op.params {
		if g.one(2) {
			q.Set(name, g.text(name))
		}
	}
	if g.one(20) {
		q.Set(g.text(""), g.text(""))
	}
	r.query = q.Encode()
	if g.one(50) {
		r.query += pick(g, "&%zz", ";a=b", "&&&", "=", "%00")
	}
	if r.op.body != nil {
		value := g.value(r.op.body, "", 0)
		if g.one(5) {
			value = g.spoil(value)
		}
		text, err := json.Marshal(value)
		if err == nil {
			r.body = string(text)
		}
		if g.one(20) {
			r.body = g.tear(r.body)
		}
	} else if g.one(20) {
		r.body = g.text("")
	}
	r.user = "olga"
	if g.one(5) {
		r.user = pick(g, "victor", "old", "", "stranger")
	}
	if g.one(100) {
		r.method = pick(g, "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "BREW", "POST", "GET")
	}
	if g.one(100) {
		r.path = pick(g, "/", "/v1", "//v1/specs", "/v1/specs/", "/v1/../v1/specs", "/v1/%2e%2e/specs", "/v1/specs%00", "/"+strings.Repeat("a", 9000))
	}
	if g.one(50) {
		r.header = map[string]string{pick(g, "Content-Type", "Accept", "Accept-Encoding", "X-Forwarded-For", "Range", "If-None-Match", "Content-Encoding", "Sec-Fetch-Site", "Origin"): pick(g, "text/plain", "gzip", "bytes=0-1", "*/*;q=0", "\"x\"", "127.0.0.1", "cross-site", "null")}
	}
	return r
}

// texts are values that often break programs.
var texts = [...]string{"", " ", "a", "web", "it's", "\"", "\\", "%", "%s%n", "$job", "$1", "'; DROP TABLE samples; --", "\x00", "\u202e", "ÿ", "😀", "-1", "0", "1e309", "NaN", "null", "true", "[]",
	"../../etc/passwd", "9223372036854775808", "24h", "-24h", "1h", "9999999h", "2026-11-21", "0000-00-00", "2026-11-21T13:00:00Z", "10000-01-01", "1969-12-31", "on", "off", "advise", "latency-sensitive",
	"SELECT 1", "FROM samples", "SELECT count(*) FROM incidents", "SELECT * FROM specs", "SELECT", "DROP TABLE x", "SELECT 1; SELECT 2", "COPY samples TO '/tmp/x'", "SELECT * FROM read_text('/etc/passwd')",
	"PRAGMA version", "SELECT * FROM range(100000000)", "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t) SELECT max(n) FROM t LIMIT 1", "SELECT repeat('x', 100000000)", "SELECT 1/0, 'NaN'::DOUBLE, 'inf'::FLOAT",
	"SELECT {'a': [1, NULL]}, MAP {'k': 1}, INTERVAL 1 MONTH, '\\x00'::BLOB, uuid(), 170141183460469231731687303715884105727::HUGEINT",
	"worst-antagonists", "most-hurt-jobs", "worst-machines", "cap-outcomes", "before-after", "incident-rounds", "incident-suspects", "interference-pairs", "5m", "m1"}

func (g *generator) text(name string) string {
	switch {
	case (name == "since" || name == "until") && !g.one(4):
		return pick(g, "24h", "1h", "2026-11-21", "2026-11-21T13:00:00Z", "0s", "99999h")
	case name == "sql" && g.one(2):
		return pick(g, texts[36:]...)
	case g.one(10):
		b := make([]byte, g.IntN(40))
		for i := range b {
			b[i] = byte(g.IntN(256))
		}
		return string(b)
	case g.one(50):
		return strings.Repeat(pick(g, texts[:]...), 1+g.IntN(2000))
	}
	return pick(g, texts[:]...)
}

func (g *generator) number() any {
	return pick[any](g, 0, 1, -1, 0.1, 1e-9, 1e308, -1e308, 2147483648, 9007199254740993, 0.5, 60, 300)
}

// maxDepth bounds recursion in the schema.
const maxDepth = 8

// value makes a value of a schema.
func (g *generator) value(schema object, name string, depth int) any {
	if depth > maxDepth {
		return nil
	}
	switch schema["type"] {
	case "object":
		out := object{}
		properties, _ := schema["properties"].(object)
		required, _ := schema["required"].([]any)
		for key, of := range properties {
			if slices.Contains(required, any(key)) || g.one(2) {
				sub, _ := of.(object)
				out[key] = g.value(sub, key, depth+1)
			}
		}
		if more, ok := schema["additionalProperties"].(object); ok {
			for range g.IntN(3) {
				out[pick(g, "job", "incident", g.text(""))] = g.value(more, "", depth+1)
			}
		}
		return out
	case "array":
		var out []any
		items, _ := schema["items"].(object)
		for range g.IntN(3) {
			out = append(out, g.value(items, name, depth+1))
		}
		return out
	case "string":
		return g.text(name)
	case "integer", "number":
		return g.number()
	case "boolean":
		return g.one(2)
	}
	return g.anything()
}

func (g *generator) anything() any {
	return pick[any](g, nil, true, 0, -1.5, "x", []any{}, []any{nil, []any{1}}, object{}, object{"a": object{"b": nil}})
}

// spoil puts an error somewhere into a value.
func (g *generator) spoil(v any) any {
	o, ok := v.(object)
	if !ok || g.one(4) {
		return g.anything()
	}
	for key := range o { // in random order
		switch g.IntN(3) {
		case 0:
			delete(o, key)
		case 1:
			o[key] = g.anything()
		case 2:
			o[key] = g.spoil(o[key])
		}
		break
	}
	if g.one(3) {
		o[g.text("")] = g.anything()
	}
	return o
}

// tear makes invalid JSON.
func (g *generator) tear(text string) string {
	switch {
	case text == "" || g.one(4):
		return pick(g, "", "{", "[[[[", "null", "{}{}", "\xff\xfe", strings.Repeat("[", 20000), `{"a":1,"a":2}`, `"`)
	case g.one(2):
		return text[:g.IntN(len(text))]
	}
	i := g.IntN(len(text))
	return text[:i] + string(rune(g.IntN(256))) + text[i:]
}
