package labcmd

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// shelf is the part of S3 that packs use. make test-s3 uses a real server instead.
type shelf struct {
	mu      sync.Mutex
	objects map[string][]byte // by path: /bucket/key
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !strings.Contains(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=test/") || strings.Contains(r.Header.Get("Authorization"), "secret"):
		http.Error(w, "who are you?", http.StatusForbidden)
	case r.Method == http.MethodPut:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.objects[r.URL.Path] = body
	case r.URL.Query().Get("list-type") == "2":
		type content struct {
			Key          string
			Size         int
			LastModified time.Time
		}
		list := struct {
			XMLName  xml.Name `xml:"ListBucketResult"`
			Contents []content
		}{}
		for name, body := range s.objects {
			key := strings.TrimPrefix(name, strings.TrimSuffix(r.URL.Path, "/")+"/")
			if strings.HasPrefix(key, r.URL.Query().Get("prefix")) {
				list.Contents = append(list.Contents, content{key, len(body), time.Unix(0, 0).UTC()})
			}
		}
		slices.SortFunc(list.Contents, func(a, b content) int { return strings.Compare(a.Key, b.Key) })
		if err := xml.NewEncoder(w).Encode(list); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	case s.objects[r.URL.Path] == nil:
		http.NotFound(w, r)
	default:
		w.Write(s.objects[r.URL.Path])
	}
}

// storage is an S3 server with the bucket results, and a function that damages one of its
// files.
func storage(t *testing.T) (url string, damage func(name string)) {
	t.Helper()
	if quelltest.Probe("versitygw") != nil {
		s := &shelf{objects: map[string][]byte{}}
		server := httptest.NewServer(s)
		t.Cleanup(server.Close)
		return server.URL, func(name string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.objects["/results/"+name] == nil {
				t.Fatalf("there is no %s", name)
			}
			s.objects["/results/"+name] = []byte("damaged")
		}
	}
	server := quelltest.NewS3(t, "results")
	return server.URL, func(name string) {
		if err := os.WriteFile(filepath.Join(server.Dir, "results", name), []byte("damaged"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestResultsInStorage: a study's records are pushed at its end and manually, stored once
// however often they are pushed, and pulled completely or not at all.
func TestResultsInStorage(t *testing.T) {
	url, damage := storage(t)
	env := clitest.Env("/nowhere")
	env["AWS_ENDPOINT_URL"], env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"] = url, quelltest.S3Key, quelltest.S3Secret
	dir := t.TempDir()
	out, here, file := filepath.Join(dir, "out"), filepath.Join(dir, "here"), studyFile(t, simulatedStudy)
	const address = "s3://results/lab/one"

	r := quell(t, env, "lab", "run", "--out", out, "--to", address, file)
	if r.Code != app.ExitOK || !strings.Contains(r.Out, "pushed: "+address+"/simulated-") {
		t.Fatalf("run: %+v", r)
	}
	if r = quell(t, env, "lab", "push", "--json", out, address); r.Code != app.ExitOK {
		t.Fatalf("push: %+v", r)
	}
	var p pushed
	if err := json.Unmarshal([]byte(r.Out), &p); err != nil || p.Bytes < 1000 || !strings.HasPrefix(p.URL, address+"/simulated-"+p.SHA256[:hashDigits]) {
		t.Fatalf("%s: %v", r.Out, err)
	}
	pull := func(want string, there bool) {
		t.Helper()
		r := quell(t, env, "lab", "pull", "--json", address, here)
		var all []pulled
		if err := json.Unmarshal([]byte(r.Out), &all); err != nil || r.Code != app.ExitOK || len(all) != 1 || filepath.Base(all[0].File) != want || all[0].There != there {
			t.Fatalf("pull: %+v, %v", r, err)
		}
	}
	name := filepath.Base(p.URL)
	pull(name, false)
	pull(name, true)
	if r := quell(t, env, "lab", "pull", address, here); r.Code != app.ExitOK || !strings.Contains(r.Out, "all of 1 packs exist here") {
		t.Errorf("nothing new: %+v", r)
	}
	if r := quell(t, env, "lab", "pull", "--json", "s3://results/lab/none", here); r.Code != app.ExitOK || strings.TrimSpace(r.Out) != "[]" {
		t.Errorf("nothing is there: %+v", r)
	}
	// The pack is equivalent to the study: the same numbers, and the same pack again.
	whole, packed := quell(t, env, "lab", "analyse", "--json", out), quell(t, env, "lab", "analyse", "--json", filepath.Join(here, name))
	if whole.Code != app.ExitOK || whole.Out != packed.Out {
		t.Errorf("analysed: %+v, %+v", whole, packed)
	}
	if r := quell(t, env, "lab", "push", filepath.Join(here, name), address); r.Code != app.ExitOK || strings.TrimSpace(r.Out) != p.URL {
		t.Errorf("pushed again: %+v", r)
	}
	// A part of the study makes a different pack.
	runs, err := filepath.Glob(filepath.Join(out, "runs", "*"))
	if err != nil || len(runs) == 0 {
		t.Fatal(runs, err)
	}
	if err := os.RemoveAll(runs[0]); err != nil {
		t.Fatal(err)
	}
	if r := quell(t, env, "lab", "push", out, address); r.Code != app.ExitOK || strings.Contains(r.Out, name) {
		t.Errorf("less of it: %+v", r)
	}
	// A pack that is damaged in storage is reported and not kept.
	damage("lab/one/" + name)
	if err := os.RemoveAll(here); err != nil {
		t.Fatal(err)
	}
	if r := quell(t, env, "lab", "pull", address, here); r.Code != app.ExitNegative || !strings.Contains(r.Err, "damaged") {
		t.Errorf("damaged: %+v", r)
	}
	if _, err := os.Stat(filepath.Join(here, name)); err == nil {
		t.Error("a damaged pack is here")
	}

	for _, bad := range []string{"results", "s3://results", "s3:///x", "s3://results/a/../b"} {
		if r := quell(t, env, "lab", "push", out, bad); r.Code != app.ExitUsage || !strings.Contains(r.Err, "s3://BUCKET/FOLDER") {
			t.Errorf("%s: %+v", bad, r)
		}
	}
	// If storage refuses writes, no record is lost.
	closed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "closed", http.StatusForbidden) }))
	defer closed.Close()
	env["AWS_ENDPOINT_URL"] = closed.URL
	again := filepath.Join(dir, "again")
	if r := quell(t, env, "lab", "run", "--out", again, "--to", address, file); r.Code != app.ExitNegative || !strings.Contains(r.Err, "quell lab push "+again+" "+address) {
		t.Errorf("no storage: %+v", r)
	}
	if r := quell(t, env, "lab", "status", again); r.Code != app.ExitOK {
		t.Errorf("its records: %+v", r)
	}
}
