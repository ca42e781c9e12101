// Package dashboard is quell-server's pages for a browser: files without data. Their script
// asks the server's API for the data, with the token that a user enters.
//
// The pages are in web, as they are served: plain ES modules, one style sheet, and uPlot. They
// need no build step and load nothing from elsewhere (docs/design/0016-dashboard.md).
package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
)

//go:embed web
var web embed.FS

// policy is the Content-Security-Policy of all answers: scripts and styles only from files
// of this server, and no HTML from strings in scripts, so that no text of a task becomes
// part of a page (https://www.w3.org/TR/CSP3/, https://w3c.github.io/trusted-types/).
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// types are the content types of the files, by the ends of their names. The licence is text.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml", "": "text/plain; charset=utf-8",
}

// file is a file as it is sent.
type file struct {
	kind        string
	text, small []byte // as it is, and by gzip
}

// Handler serves the pages: the first one at /, and its files below /ui/VERSION/. VERSION
// depends on the contents of all files, so browsers keep the files and ask only for the first
// page again.
type Handler struct {
	index file
	files map[string]file // by path
}

// New reads the files.
func New() (*Handler, error) { return of(web) }

// of is New for a tree with a folder web.
func of(tree fs.FS) (*Handler, error) {
	h := &Handler{files: map[string]file{}}
	sum := sha256.New()
	texts := map[string][]byte{}
	err := fs.WalkDir(tree, "web", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d ", name, len(text))
		sum.Write(text)
		texts[strings.TrimPrefix(name, "web/")] = text
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read pages: %w", err)
	}
	base := "/ui/" + hex.EncodeToString(sum.Sum(nil)[:8]) + "/"
	for name, text := range texts {
		kind, known := types[path.Ext(name)]
		if !known {
			return nil, fmt.Errorf("read pages: %s: unknown type", name)
		}
		if name == "index.html" {
			h.index, err = pack(kind, bytes.ReplaceAll(text, []byte("{base}"), []byte(base)))
		} else {
			h.files[base+name], err = pack(kind, text)
		}
		if err != nil {
			return nil, fmt.Errorf("compress %s: %w", name, err)
		}
	}
	return h, nil
}

func pack(kind string, text []byte) (file, error) {
	var small bytes.Buffer
	z := gzip.NewWriter(&small)
	_, err := z.Write(text)
	if err == nil {
		err = z.Close()
	}
	return file{kind, text, small.Bytes()}, err
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	for _, x := range [...][2]string{
		{"Content-Security-Policy", policy}, {"X-Content-Type-Options", "nosniff"}, {"X-Frame-Options", "DENY"},
		{"Referrer-Policy", "no-referrer"}, {"Cross-Origin-Opener-Policy", "same-origin"}, {"Cross-Origin-Resource-Policy", "same-origin"},
	} {
		head.Set(x[0], x[1])
	}
	f, ok := h.index, r.URL.Path == "/"
	cache := "no-cache"
	if !ok {
		f, ok = h.files[r.URL.Path]
		cache = "public, max-age=31536000, immutable"
	}
	if !ok {
		http.Error(w, "no such file; the pages begin at /", http.StatusNotFound)
		return
	}
	text := f.text
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		text = f.small
		head.Set("Content-Encoding", "gzip")
	}
	head.Set("Content-Type", f.kind)
	head.Set("Cache-Control", cache)
	head.Set("Vary", "Accept-Encoding")
	head.Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // an error is the client's; net/http discards it for a HEAD
}
