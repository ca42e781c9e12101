package origin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	gort "runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"syscall"
	"testing"
)

// The files are those that Docker 20.10 and podman 4.3 wrote, without what is not read.
func TestStateFiles(t *testing.T) {
	r, err := dockerRecord("testdata/docker", someID)
	if err != nil || r == nil || r.name != "shop-web-1" || r.image != "nginx:1.25" || r.labels["com.docker.compose.service"] != "web" {
		t.Errorf("docker: %+v, %v", r, err)
	}
	if r, err := dockerRecord("testdata/docker", strings.Repeat("0", 64)); r != nil || err != nil {
		t.Errorf("another container: %+v, %v", r, err)
	}
	all, err := podmanRecords("testdata/podman")
	if r := all[someID]; err != nil || r == nil || r.name != "db" || r.image != "docker.io/library/postgres:16" {
		t.Errorf("podman: %+v, %v", r, err)
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "containers", someID), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "containers", someID, "config.v2.json"), []byte(`{"Name":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := dockerRecord(dir, someID); r != nil || err == nil {
		t.Errorf("half a file: %+v, %v", r, err)
	}
	list := filepath.Join(dir, "overlay-containers", "volatile-containers.json")
	if err := errors.Join(os.Mkdir(filepath.Dir(list), 0o755), os.WriteFile(list, []byte(`[{"id":"`+someID+`","names":["web"]}]`), 0o600)); err != nil {
		t.Fatal(err)
	}
	if all, err := podmanRecords(dir); err != nil || all[someID] == nil || all[someID].name != "web" {
		t.Errorf("podman run --rm: %+v, %v", all, err)
	}
}

// TestManyListsOfContainers: a user may make any number of lists, short entries, and other files next to them. What is
// read and kept of them is bounded, and the directory is not listed.
func TestManyListsOfContainers(t *testing.T) {
	full := func(entry string) string {
		return "[" + strings.Repeat(entry+",", maxFile/(len(entry)+1)-2) + entry + "]"
	}
	one := func(n int) string { return fmt.Sprintf(`{"id":"%064d","names":["a"]}`, n) }
	for _, c := range []struct {
		name    string
		drivers []string
		list    func(n int) string
		want    int    // containers
		bad     string // in the error
	}{
		{"many lists", drivers[:], func(n int) string { return "[" + one(n) + `,{"id":"1","names":["b"]}]` }, mostLists, ""},
		{"of no driver", []string{"a", "b"}, func(n int) string { return "[" + one(n) + "]" }, 0, ""},
		{"many entries", drivers[:1], func(int) string { return full(`{}`) }, 0, ""},
		{"many entries that are none", drivers[:1], func(int) string { return full(`0`) }, 0, "cannot unmarshal number"},
		{"no list", drivers[:1], func(int) string { return `{}` }, 0, "it is no list"},
		{"half a list", drivers[:1], func(n int) string { return "[" + one(n) }, 1, "EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for n, driver := range c.drivers {
				list := filepath.Join(dir, driver+"-containers", "containers.json")
				if err := errors.Join(os.Mkdir(filepath.Dir(list), 0o755), os.WriteFile(list, []byte(c.list(n)), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			heap := peak(func() {
				all, err := podmanRecords(dir)
				if len(all) != c.want || (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) {
					t.Errorf("%d containers, %v; want %d, %q", len(all), err, c.want, c.bad)
				}
			})
			if heap > 8*maxFile {
				t.Errorf("%d MB at once", heap>>20)
			}
		})
	}
}

// peak is the most that a function has on the heap at once, more or less: that is collected whenever it has grown by
// a fifth.
func peak(f func()) uint64 {
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	now := func() uint64 {
		metrics.Read(heap)
		return heap[0].Value.Uint64()
	}
	debug.FreeOSMemory() // collects
	before := now()
	most := before
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			most = max(most, now())
			select {
			case <-done:
				return
			default:
				gort.Gosched()
			}
		}
	}()
	f()
	close(done)
	<-ended
	return most - before
}

// What is no regular file is not opened: a user may put a link to a device where podman's list of
// containers is looked for, and opening a watchdog's device restarts the machine a minute later. The
// error of a socket that is opened is another one.
func TestOnlyRegularFilesAreOpened(t *testing.T) {
	dir := t.TempDir()
	socket, fifo, link := filepath.Join(dir, "socket"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Symlink(socket, link)); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{socket, fifo, link, dir, link + "/below", dir + "/none"} {
		if _, err := openState(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", file, err)
		}
	}
	list := filepath.Join(dir, "overlay-containers/containers.json")
	if err := errors.Join(os.Mkdir(filepath.Dir(list), 0o755), os.Symlink(socket, list)); err != nil {
		t.Fatal(err)
	}
	if all, err := podmanRecords(dir); len(all) > 0 || err != nil {
		t.Errorf("podman: %+v, %v", all, err)
	}
}

// A list of pods as a kubelet of 1.34 answers, without what is not read.
func TestKubelet(t *testing.T) {
	text, err := os.ReadFile("testdata/pods.json")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		w.Write(text)
	}))
	defer s.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := &Kubelet{URL: s.URL + "/pods", Token: token}
	pods, err := k.pods(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[string]record{
		somePod:                                {owner: "web", priorityClass: "high", priority: 1000},
		"22222222-2222-3333-4444-555555555555": {owner: "report", priority: -10, priorityClass: "low"},
		"44444444-2222-3333-4444-555555555555": {owner: "web"}, // of a Rollout's ReplicaSet
		"0123456789abcdef0123456789abcdef":     {owner: "kube-apiserver", priorityClass: "system-node-critical", priority: 2000001000},
	} {
		got := pods[uid]
		if got == nil || got.owner != want.owner || got.priorityClass != want.priorityClass || got.priority != want.priority {
			t.Errorf("%s: %+v", uid, got)
		}
	}
	for _, bad := range []*Kubelet{{URL: s.URL + "/pods"}, {URL: s.URL, Token: token + "x"}, {URL: s.URL, CA: token}, {URL: "http://127.0.0.1:1/"}} {
		if _, err := bad.pods(context.Background()); err == nil || !strings.HasPrefix(err.Error(), "ask the kubelet") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if pods, err := (&Kubelet{}).pods(context.Background()); pods != nil || err != nil {
		t.Errorf("no kubelet: %v, %v", pods, err)
	}
}

// TestAttackAnotherPodsUID: a pod whose annotation says that its file has the hash that is another pod's UID, so that
// the other has its priority and its owner, changes nothing of that.
func TestAttackAnotherPodsUID(t *testing.T) {
	const victim = `{"metadata":{"uid":"v","name":"dns","namespace":"net"},"spec":{"priorityClassName":"system-node-critical","priority":2000001000}}`
	const attacker = `{"metadata":{"uid":"a","name":"x","namespace":"tenant","annotations":{"kubernetes.io/config.hash":"v","kubernetes.io/config.source":"api"}},"spec":{"priority":-1}}`
	for _, list := range []string{victim + "," + attacker, attacker + "," + victim} {
		all, err := readPods([]byte(`{"items":[` + list + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := all["v"]; got.pod != "dns" || got.priorityClass != "system-node-critical" {
			t.Errorf("%s: the victim is taken for %+v", list, got)
		}
	}
}

// FuzzRuntimesAnswers: whatever the kubelet, dockerd and podman say of containers, whose names and
// labels their users choose, names no path and is not longer than names may be.
func FuzzRuntimesAnswers(f *testing.F) {
	f.Add([]byte(`{"items":[{"metadata":{"uid":"u","name":"web-6d4b75cb6d-hm5ww","namespace":"shop","labels":{"pod-template-hash":"6d4b75cb6d"},
		"annotations":{"kubernetes.io/config.hash":"h"},"ownerReferences":[{"kind":"ReplicaSet","name":"web-6d4b75cb6d","controller":true}]},"spec":{"priority":-1}}]}`),
		[]byte(`{"Name":"/web","Config":{"Image":"nginx","Labels":{"app":"web"}}}`),
		[]byte(`[{"id":"`+someID+`","names":["web"],"metadata":"{\"image-name\":\"docker.io/library/nginx:1\"}"}]`))
	f.Fuzz(func(t *testing.T, pods, docker, podman []byte) {
		check := func(runtime Runtime, r *record) {
			got := facts(Origin{Runtime: runtime, ID: someID, Pod: somePod, UID: -1}, r, Process{})
			if strings.HasPrefix(got.Name, "/") || strings.HasPrefix(got.Job, "/") || len(got.Name) > longestName {
				t.Errorf("%+v: %+v", r, got)
			}
		}
		if all, err := readPods(pods); err == nil {
			for _, r := range all {
				check(Kubernetes, r)
			}
		}
		dir := t.TempDir()
		for file, text := range map[string][]byte{"containers/" + someID + "/config.v2.json": docker, "vfs-containers/containers.json": podman} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := dockerRecord(dir, someID); err == nil && r != nil {
			check(Docker, r)
		}
		if all, err := podmanRecords(dir); err == nil && all[someID] != nil {
			check(Podman, all[someID])
		}
	})
}

// The address of a node is put into the URL as a pod's environment has it, also if it is IPv6.
func TestTheKubeletsAddress(t *testing.T) {
	for url, want := range map[string]string{
		"https://fd00::17:10250/pods":    "https://[fd00::17]:10250/pods",
		"https://[fd00::17]:10250/pods":  "https://[fd00::17]:10250/pods",
		"https://10.0.0.7:10250/pods":    "https://10.0.0.7:10250/pods",
		"https://node-7:10250/pods?x=::": "https://node-7:10250/pods?x=::",
		"http://127.0.0.1:1/":            "http://127.0.0.1:1/",
	} {
		if got := bracketed(url); got != want {
			t.Errorf("%s becomes %s, want %s", url, got, want)
		}
	}
}
