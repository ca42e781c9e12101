package origin

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

const sandboxID = "5555555555553958e1f0a9b8c7d6e5f40123456789abcdef0123456789abcdef"

// text and nested append fields to a protobuf message.
func text(m []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(m, field, protowire.BytesType), s)
}

func nested(m []byte, field protowire.Number, in []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(m, field, protowire.BytesType), in)
}

func number(m []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(m, field, protowire.VarintType), n)
}

func pairs(m []byte, field protowire.Number, kv ...string) []byte {
	for i := 0; i < len(kv); i += 2 {
		m = nested(m, field, text(text(nil, 1, kv[i]), 2, kv[i+1]))
	}
	return m
}

// sandboxes and containers are what a runtime answers about the pod shop/web-5d8f7c9b6d-x7k2p.
func sandboxes() []byte {
	meta := number(text(text(text(nil, 1, "web-5d8f7c9b6d-x7k2p"), 2, somePod), 3, "shop"), 4, 1)
	pod := nested(text(nil, 1, sandboxID), 2, meta)
	pod = number(number(pod, 3, 0), 4, 1795262400)
	pod = pairs(pod, 5, "app", "web", "pod-template-hash", "5d8f7c9b6d")
	pod = pairs(pod, 6, "quell.io/class", "latency-sensitive", "other", "x")
	return nested(nil, 1, text(pod, 7, "runc"))
}

func containers() []byte {
	c := text(text(nil, 1, someID), 2, sandboxID)
	c = nested(c, 3, number(text(nil, 1, "app"), 2, 3))
	c = nested(c, 4, text(nil, 1, "web:1"))
	c = number(text(c, 5, "sha256:ab"), 6, 1)
	c = pairs(c, 8, labelPod, "web-5d8f7c9b6d-x7k2p", labelNamespace, "shop", labelContainer, "app", "io.kubernetes.pod.uid", somePod)
	return nested(nil, 1, c)
}

// runtime serves CRI on a socket: gRPC over HTTP/2 without TLS, as containerd does.
type runtime struct {
	mu      sync.Mutex
	answers map[string][]byte
	status  string
}

func (r *runtime) set(answers map[string][]byte, status string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers, r.status = answers, status
}

func (r *runtime) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	body, err := io.ReadAll(req.Body)
	if err != nil || req.ProtoMajor != 2 || req.Header.Get("Content-Type") != "application/grpc" || req.Header.Get("Te") != "trailers" || !bytes.Equal(body, make([]byte, 5)) {
		http.Error(w, "no gRPC", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/grpc")
	answer, known := r.answers[req.URL.Path]
	if !known || r.status != "" { // a status alone is in the header
		w.Header().Set("Grpc-Status", "14")
		w.Header().Set("Grpc-Message", r.status)
		return
	}
	w.Header().Set("Trailer", "Grpc-Status")
	w.Write(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(answer))))
	w.Write(answer)
	w.Header().Set("Grpc-Status", "0")
}

func (r *runtime) serve(t *testing.T) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri") // shorter than a socket's path may be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: r, Protocols: &p}
	done := make(chan bool)
	go func() { s.Serve(l); close(done) }()
	t.Cleanup(func() { s.Close(); <-done })
	return socket
}

func answers() map[string][]byte {
	return map[string][]byte{listSandboxes: sandboxes(), listContainers: containers()}
}

func TestCRI(t *testing.T) {
	r := &runtime{answers: answers()}
	c := &cri{sockets: []string{"/nonexistent/socket", r.serve(t)}}
	defer c.close()
	all, err := c.records(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	box, app := all[sandboxID], all[someID]
	if len(all) != 2 || box == nil || !box.sandbox || app == nil || app.sandbox {
		t.Fatalf("%+v", all)
	}
	f := facts(Origin{Runtime: Kubernetes, ID: someID, Pod: somePod, QoS: Burstable, UID: -1}, app, Process{})
	if f.Name != "shop/web-5d8f7c9b6d-x7k2p/app" || f.Job != "shop/web/app" || len(f.Annotations) != 1 || f.Annotations["quell.io/class"] != "latency-sensitive" ||
		f.Labels["image"] != "web:1" || f.Labels["restart"] != "3" || f.Labels["qos"] != "Burstable" {
		t.Errorf("%+v", f)
	}
	if f := facts(Origin{Runtime: Kubernetes, ID: sandboxID, Pod: somePod, UID: -1}, box, Process{}); !f.Sandbox || f.Name != "" {
		t.Errorf("the sandbox: %+v", f)
	}
}

func TestCRIRefuses(t *testing.T) {
	for what, r := range map[string]*runtime{
		"status":    {answers: answers(), status: "runtime is not ready"},
		"method":    {answers: map[string][]byte{listSandboxes: nil}},
		"sandbox":   {answers: map[string][]byte{listSandboxes: {0x0a, 0x7f}, listContainers: nil}},
		"container": {answers: map[string][]byte{listSandboxes: nil, listContainers: nested(nil, 1, []byte{0x42, 1, 0xff})}},
	} {
		c := &cri{sockets: []string{r.serve(t)}}
		_, err := c.records(t.Context())
		c.close()
		if err == nil || !strings.Contains(err.Error(), "ask the container runtime at /") || r.status != "" && !strings.Contains(err.Error(), r.status) {
			t.Errorf("%s: %v", what, err)
		}
	}
	dead := filepath.Join(t.TempDir(), "dead")
	if err := os.WriteFile(dead, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&cri{sockets: []string{dead}}).records(t.Context()); err == nil || strings.Contains(err.Error(), "localhost") {
		t.Errorf("no socket: %v", err)
	}
}

// A runtime that does not answer is given up after the deadline.
func TestCRIHangs(t *testing.T) {
	dir, err := os.MkdirTemp("", "cri")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // nothing accepts
	ctx, cancel := context.WithCancel(t.Context())
	c := &cri{sockets: []string{dir + "/s"}}
	defer c.close()
	ended := make(chan error)
	go func() { _, err := c.records(ctx); ended <- err }()
	cancel()
	if err := <-ended; err == nil {
		t.Error("an answer")
	}
}

// FuzzCRI: whatever a runtime answers, it is refused or gives names that are no paths.
func FuzzCRI(f *testing.F) {
	f.Add(sandboxes(), containers())
	f.Add([]byte{0x0a, 0x00}, []byte{0x0a, 0x02, 0x12, 0x00})
	f.Fuzz(func(t *testing.T, pods, all []byte) {
		records := map[string]*record{}
		if readSandboxes(pods, records) != nil || readContainers(all, records) != nil {
			return
		}
		for _, r := range records {
			if f := facts(Origin{Runtime: Kubernetes, ID: someID, Pod: somePod, UID: -1}, r, Process{}); strings.HasPrefix(f.Name, "/") || strings.HasPrefix(f.Job, "/") || len(f.Name) > longestName {
				t.Errorf("%+v: %+v", r, f)
			}
		}
	})
}
