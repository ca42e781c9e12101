package server

import (
	_ "embed" // canned.yaml
	"net/http"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/cluster/store/dialect"
)

// cannedQueries is the list of canned queries, as YAML.
//
//go:embed canned.yaml
var cannedQueries []byte

// cannedSQL returns a canned query with its parameters inserted as quoted text, and the expression since for $since.
func (s *Server) cannedSQL(name string, params map[string]string, since string) (string, error) {
	var names []string
	for _, c := range s.canned {
		names = append(names, c.Name)
		if c.Name != name {
			continue
		}
		for p := range params {
			if !slices.Contains(c.Params, p) {
				return "", bad("%s has no parameter %.40q", name, p)
			}
		}
		text := strings.ReplaceAll(c.SQL, "$since", since)
		for _, p := range c.Params {
			v, ok := params[p]
			if !ok {
				return "", bad("%s needs the parameter %s", name, p)
			}
			text = strings.ReplaceAll(text, "$"+p, dialect.DuckDB().Quote(v))
		}
		return text, nil
	}
	return "", bad("unknown canned query %.40q: want one of %s", name, strings.Join(names, ", "))
}

func (s *Server) listCanned(w http.ResponseWriter, _ *request) error {
	return reply(w, http.StatusOK, s.canned)
}
