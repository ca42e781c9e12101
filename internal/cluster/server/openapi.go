package server

import (
	"cmp"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/cluster/api"
)

// openapi writes the document from the table of routes (OpenAPI 3.1.0).
func (s *Server) openapi(w http.ResponseWriter, _ *request) error {
	return reply(w, http.StatusOK, document(s.Version))
}

type object = map[string]any

func document(version string) object {
	paths := object{}
	for _, rt := range table() {
		op := object{"summary": rt.summary, "operationId": strings.ToLower(rt.method) + strings.NewReplacer("/", "_", ".", "_").Replace(rt.path),
			"responses": responses(&rt)}
		if rt.scope != Public {
			op["security"] = []object{{"token": []string{string(rt.scope)}}}
		}
		var params []object
		for _, p := range rt.params {
			params = append(params, object{"name": p.name, "in": "query", "description": p.help, "schema": object{"type": "string"}})
		}
		if params != nil {
			op["parameters"] = params
		}
		if rt.in != nil {
			op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": schema(reflect.TypeOf(rt.in))}}}
		}
		item, _ := paths[rt.path].(object)
		if item == nil {
			item = object{}
		}
		item[strings.ToLower(rt.method)] = op
		paths[rt.path] = item
	}
	return object{"openapi": "3.1.0", "info": object{"title": "quell-server", "version": version,
		"description": "Noisy neighbours of a cluster: specs, incidents, and SQL over both and every sample. Numeric times are milliseconds since 1970 UTC."},
		"paths":      paths,
		"components": object{"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer", "description": "scopes: viewer, operator"}}}}
}

func responses(rt *route) object {
	content := object{cmp.Or(rt.media, "application/json"): object{"schema": schema(reflect.TypeOf(rt.out))}}
	all := object{"200": object{"description": "success", "content": content}}
	failure := object{"application/json": object{"schema": schema(reflect.TypeFor[api.Failure]())}}
	add := func(status, why string) { all[status] = object{"description": why, "content": failure} }
	add("429", "too many requests of this caller")
	if rt.scope != Public {
		add("401", "no token, or no valid one")
		add("403", "the token's scope does not allow it, or a browser sends it for a page of another site")
		add("503", "too much is in progress: answers, queries or event streams; or the server has no connection to machines")
	}
	if rt.in != nil || rt.params != nil {
		add("400", "the request is invalid")
	}
	if rt.in != nil {
		add("413", "the request is too large")
		add("415", "the request is not application/json")
	}
	switch rt.path {
	case cluster.PathQuery, cluster.PathIncidents, cluster.PathPairs, cluster.PathTasks:
		add("422", "the query exceeds its limit of time or memory")
	case cluster.PathCommands:
		add("404", "the machine was never heard of, or nothing stands that could be reset")
		add("409", "the machine refused, and the decision was withdrawn; or no machine is known for a roll-out to begin with")
		add("502", "the decision cannot be stored or sent")
	case "/healthz", "/readyz":
		all["503"] = object{"description": "the server does not work, or is not ready", "content": content}
	}
	return all
}

// schema returns the schema of a type's JSON (JSON Schema 2020-12).
func schema(t reflect.Type) object {
	if t == nil {
		return object{}
	}
	if t == reflect.TypeFor[json.RawMessage]() {
		return object{} // anything
	}
	if t.Kind() != reflect.Pointer && t.Implements(reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()) {
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schema(t.Elem())
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice:
		return object{"type": "array", "items": schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": schema(t.Elem())}
	case reflect.Struct:
		properties, required := object{}, []string{}
		for _, f := range reflect.VisibleFields(t) {
			name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
			name = cmp.Or(name, f.Name)
			if name == "-" || !f.IsExported() || f.Anonymous { // the fields of an embedded struct are visible themselves
				continue
			}
			properties[name] = schema(f.Type)
			if !strings.Contains(rest, "omitempty") {
				required = append(required, name)
			}
		}
		slices.Sort(required)
		return object{"type": "object", "properties": properties, "required": required}
	}
	return object{}
}
