package evict

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/cluster/notify"
)

const (
	// timeout bounds a program of the operator, and grace how long it has after SIGKILL to let go
	// of its output.
	timeout, grace = 30 * time.Second, 2 * time.Second
	// most bounds what is read of a pod, in bytes: etcd stores 1.5 MiB.
	most = 4 << 20
)

// keep is the annotation by which a pod is never evicted.
const keep = "quell.io/evict"

// pod evicts a pod, if it runs on the machine that accuses it and something starts it again.
func (e *Evictor) pod(ctx context.Context, q *request, namespace, name string) error {
	path := strings.TrimSuffix(e.Config.Kubernetes.URL, "/") + "/api/v1/namespaces/" + namespace + "/pods/" + name
	var found struct {
		Metadata struct {
			UID         string
			Annotations map[string]string
			Owners      []struct {
				Kind       string
				Controller bool
			} `json:"ownerReferences"`
		}
		Spec struct{ NodeName string }
	}
	switch status, err := e.ask(ctx, http.MethodGet, path, nil, &found); {
	case err != nil:
		return err
	case status == http.StatusNotFound:
		return fmt.Errorf("%w: there is no such pod", errRefused)
	case status/100 != 2:
		return fmt.Errorf("read the pod: the API server answers %d", status)
	}
	if found.Spec.NodeName != q.Machine {
		return fmt.Errorf("%w: Kubernetes says that it runs on %q, and not on the machine that accuses it", errRefused, notify.Clip(found.Spec.NodeName))
	}
	if found.Metadata.Annotations[keep] == "never" {
		return fmt.Errorf(`%w: its annotation %s is "never"`, errRefused, keep)
	}
	kind := ""
	for _, o := range found.Metadata.Owners {
		if o.Controller {
			kind = o.Kind
		}
	}
	switch kind {
	case "":
		return fmt.Errorf("%w: it has no controller, so nothing would start it again", errRefused)
	case "DaemonSet", "Node":
		return fmt.Errorf("%w: its %s would start it again on this machine", errRefused, kind)
	}
	eviction := map[string]any{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": map[string]string{"namespace": namespace, "name": name},
		"deleteOptions": map[string]any{"preconditions": map[string]string{"uid": found.Metadata.UID}}}
	switch status, err := e.ask(ctx, http.MethodPost, path+"/eviction", eviction, nil); {
	case err != nil:
		return err
	case status == http.StatusTooManyRequests:
		return fmt.Errorf("%w: a disruption budget forbids it now, or the API server is overloaded (429)", errRefused)
	case status == http.StatusNotFound || status == http.StatusConflict:
		return fmt.Errorf("%w: the pod has ended meanwhile", errRefused)
	case status/100 != 2:
		return fmt.Errorf("evict the pod: the API server answers %d", status)
	}
	return nil
}

// ask sends a request to the API server and decodes a good answer.
func (e *Evictor) ask(ctx context.Context, method, url string, in, out any) (status int, err error) {
	var body io.Reader = http.NoBody
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return 0, err
		}
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	a, err := e.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer a.Body.Close()
	if out != nil && a.StatusCode/100 == 2 {
		if err := json.NewDecoder(io.LimitReader(a.Body, most)).Decode(out); err != nil {
			return a.StatusCode, fmt.Errorf("decode the answer: %w", err)
		}
	}
	return a.StatusCode, nil
}

// hook runs the operator's program with the request as JSON on its standard input. Exit code 0: done.
func (e *Evictor) hook(ctx context.Context, q *request) error {
	text, err := json.Marshal(q)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	said := &head{most: 1 << 10}
	cmd := exec.CommandContext(ctx, e.Config.Hook)
	cmd.Stdin, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(text), said, grace
	switch err := cmd.Run(); {
	case ctx.Err() != nil:
		return fmt.Errorf("%s has not ended after %s", e.Config.Hook, timeout)
	case err != nil:
		return fmt.Errorf("%s: %w: %s", e.Config.Hook, err, bytes.TrimSpace(said.text))
	}
	return nil
}

// head keeps the first bytes of what is written.
type head struct {
	text []byte
	most int
}

// Write implements io.Writer.
func (h *head) Write(p []byte) (int, error) {
	h.text = append(h.text, p[:min(len(p), h.most-len(h.text))]...)
	return len(p), nil
}
