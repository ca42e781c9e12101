//go:build browser

package dashboard

import (
	"io"
	"net/http"
	"testing"
)

// A canned query counts from the time that is chosen when it runs, also if the query was chosen before.
func TestTheTimeOfACannedQueryInABrowser(t *testing.T) {
	asked := make(chan string, 1)
	b := browse(t, pagesOf(t, &oneAgent{inc: open()}, func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case "/v1/queries":
			_, _ = io.WriteString(w, `[{"name": "newest", "help": "h", "sql": "SELECT $since AS a"}]`)
		case "/v1/query":
			text, _ := io.ReadAll(r.Body)
			asked <- string(text)
			_, _ = io.WriteString(w, `{"columns": [{"name": "a", "type": "VARCHAR"}], "rows": [["x"]]}`)
		default:
			return false
		}
		return true
	}), "T")
	b.visit("#/sql?canned=newest", "One SELECT")
	eval[bool](b, "(s => { s.selectedIndex = 3; s.dispatchEvent(new Event('change')); document.querySelector('main button.primary').click(); return true; })(document.querySelectorAll('main select')[1])")
	b.until("it is answered", "document.querySelector('main [aria-label=Result]')")
	if text := <-asked; text != `{"sql":"SELECT make_timestamptz(0) AS a"}` {
		t.Errorf("asked %s", text)
	}
	b.quiet()
}
