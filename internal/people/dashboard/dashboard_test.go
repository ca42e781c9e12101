package dashboard

import (
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

// ask sends a request to the pages.
func ask(t *testing.T, h http.Handler, method, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func pages(t *testing.T) *Handler {
	t.Helper()
	h, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

var named = regexp.MustCompile(`(?:src|href)="(/[^"]*)"`)

// The first page names only files that exist, below an address that changes with them. Browsers
// keep the files for ever and the first page never.
func TestTheFirstPage(t *testing.T) {
	h := pages(t)
	w := ask(t, h, "GET", "/")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" || w.Header().Get("Cache-Control") != "no-cache" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	all := named.FindAllStringSubmatch(w.Body.String(), -1)
	if len(all) < 5 {
		t.Fatalf("it names %q", all)
	}
	for _, m := range all {
		f := ask(t, h, "GET", m[1])
		if f.Code != http.StatusOK || !strings.Contains(f.Header().Get("Cache-Control"), "immutable") || !strings.HasPrefix(m[1], "/ui/") {
			t.Errorf("%s: %d %v", m[1], f.Code, f.Header())
		}
	}
	for _, other := range []string{"/ui/", "/ui/0000000000000000/main.js", "/ui/../dashboard.go", "/index.html"} {
		if w := ask(t, h, "GET", other); w.Code != http.StatusNotFound || w.Header().Get("Content-Security-Policy") == "" {
			t.Errorf("%s: %d %v", other, w.Code, w.Header())
		}
	}
}

// All files are also sent compressed, with the same content.
func TestCompressed(t *testing.T) {
	h := pages(t)
	for name, f := range h.files {
		w := ask(t, h, "GET", name, "Accept-Encoding", "br, gzip")
		z, err := gzip.NewReader(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(z)
		if err != nil || string(text) != string(f.text) || w.Header().Get("Content-Encoding") != "gzip" || w.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s: %d bytes of %d, %v %v", name, len(text), len(f.text), err, w.Header())
		}
		if plain := ask(t, h, "GET", name); plain.Body.String() != string(f.text) {
			t.Errorf("%s: not as it is without compression", name)
		}
	}
}

// What a browser allows these pages: files of this server and its API, nothing else. A
// script has no way to make HTML of a text.
func TestPolicy(t *testing.T) {
	h := pages(t)
	for _, p := range []string{"/", "/none"} {
		head := ask(t, h, "GET", p).Header()
		csp := head.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "connect-src 'self';", "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: no %s in %s", p, want, csp)
			}
		}
		if strings.Contains(csp, "unsafe") || head.Get("X-Content-Type-Options") != "nosniff" || head.Get("Referrer-Policy") != "no-referrer" || head.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s: %v", p, head)
		}
	}
}

// unsafe are the ways to make HTML or code of a string, and addresses elsewhere. A namespace
// is no address that is asked for.
var unsafe = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|createContextualFragment|dangerously|localStorage\.setItem\('quell-token|document\.cookie|https?://`)

// TestSafe: our own files contain none of them, no inline script, style or handler, and the
// first page loads nothing from elsewhere.
func TestSafe(t *testing.T) {
	inline := regexp.MustCompile(`(?i)<script>|<script [^>]*>[^<]|<style|\sstyle=|\son[a-z]+=|javascript:`)
	err := fs.WalkDir(web, "web", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Base(path.Dir(name)) == "uplot" {
			return err
		}
		text, err := web.ReadFile(name)
		if err != nil {
			return err
		}
		for n, line := range strings.Split(string(text), "\n") {
			line = strings.ReplaceAll(line, "http://www.w3.org/2000/svg", "")
			if found := unsafe.FindString(line); found != "" {
				t.Errorf("%s:%d: %s", name, n+1, found)
			}
			if found := inline.FindString(line); found != "" && path.Ext(name) == ".html" {
				t.Errorf("%s:%d: %s", name, n+1, found)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var imported = regexp.MustCompile(`(?m)(?:from |import\()'\./([^']+)'`)

// Every module that a module imports exists, and every module is imported or named by the
// first page.
func TestModulesFitTogether(t *testing.T) {
	h := pages(t)
	used := map[string]bool{}
	base := ""
	for name := range h.files {
		if before, ok := strings.CutSuffix(name, "main.js"); ok {
			base = before
		}
	}
	for _, m := range named.FindAllStringSubmatch(string(h.index.text), -1) {
		used[m[1]] = true
	}
	for name, f := range h.files {
		if path.Ext(name) != ".js" || strings.Contains(name, "/uplot/") {
			continue
		}
		for _, m := range imported.FindAllStringSubmatch(string(f.text), -1) {
			used[base+m[1]] = true
			if _, ok := h.files[base+m[1]]; !ok {
				t.Errorf("%s imports %s, which does not exist", name, m[1])
			}
		}
	}
	for name := range h.files {
		if !used[name] && path.Base(name) != "LICENSE" {
			t.Errorf("%s is not used", name)
		}
	}
}

// The names that a module imports from another are exported there.
func TestImportedNamesExist(t *testing.T) {
	h := pages(t)
	list := regexp.MustCompile(`(?m)^import \{([^}]*)\} from '\./([^']+)'`)
	for name, f := range h.files {
		if path.Ext(name) != ".js" || strings.Contains(name, "/uplot/") {
			continue
		}
		for _, m := range list.FindAllStringSubmatch(string(f.text), -1) {
			from := string(h.files[path.Dir(name)+"/"+m[2]].text)
			for want := range strings.SplitSeq(m[1], ",") {
				want = strings.TrimSpace(want)
				if !regexp.MustCompile(`(?m)^export (async )?(function|const|class|let) ` + regexp.QuoteMeta(want) + `\b`).MatchString(from) {
					t.Errorf("%s: %s does not export %q", path.Base(name), m[2], want)
				}
				body := strings.Replace(string(f.text), m[0], "", 1)
				if !regexp.MustCompile(`\b` + regexp.QuoteMeta(want) + `\b`).MatchString(body) {
					t.Errorf("%s: %q is imported and not used", path.Base(name), want)
				}
			}
		}
	}
}
