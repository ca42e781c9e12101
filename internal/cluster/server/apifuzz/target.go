package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// target is the server under test.
type target struct {
	url    string
	tokens [3]string // by token
	client http.Client
	cmd    *exec.Cmd
	dir    string
	ended  chan error
	once   sync.Once
	err    error
}

// trace is the header of the initial samples, so that queries have data to read.
const trace = "ts,machine,job,task,platform,signal,variant,class,cpu,cost,coverage,flags\n"

func start(ctx context.Context, exe string) (s *target, err error) {
	s = &target{ended: make(chan error, 1), client: http.Client{Timeout: 2 * time.Minute}}
	if s.dir, err = os.MkdirTemp("", "quell-apifuzz-"); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	tokens := filepath.Join(s.dir, "tokens")
	for i, scope := range map[token]string{operator: "operator", viewer: "viewer"} {
		out, err := exec.CommandContext(ctx, exe, "token", scope, scope).Output()
		if err != nil {
			return nil, fmt.Errorf("make a token: %w", err)
		}
		lines := strings.Split(string(out), "\n")
		if len(lines) < 4 {
			return nil, fmt.Errorf("make a token: %q", out)
		}
		s.tokens[i] = strings.TrimSpace(lines[1])
		if err := appendTo(tokens, strings.TrimSpace(lines[3])+"\n"); err != nil {
			return nil, err
		}
	}
	var text strings.Builder
	text.WriteString(trace)
	for i := range 500 {
		fmt.Fprintf(&text, "%d,m%d,web,/web/%d,p,cpi,v,batch,1,%g,1,\n", time.Now().UnixMilli()-int64(i)*1000, i%3, i%10, 1+float64(i%7)/10)
	}
	samples := filepath.Join(s.dir, "samples.csv")
	if err := appendTo(samples, text.String()); err != nil {
		return nil, err
	}
	state := filepath.Join(s.dir, "state")
	if out, err := exec.CommandContext(ctx, exe, "import", "--set", "state_dir="+state, samples).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("import samples: %w: %s", err, out)
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s.url = "http://" + address
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return nil, fmt.Errorf("make log: %w", err)
	}
	defer log.Close()
	s.cmd = exec.Command(exe, "--set", "state_dir="+state, "--set", "listen="+address, "--set", "bus.listen=127.0.0.1:0", "--set", "tokens_file="+tokens,
		"--set", "query.time=1s", "--set", "query.memory_mb=64", "--set", "limits.per_second=100000", "--set", "limits.burst=100000", "--set", "log_level=warn")
	s.cmd.Stderr = log
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	go func() { s.ended <- s.cmd.Wait() }()
	return s, s.await(ctx)
}

// await returns when the server is ready.
func (s *target) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		if r, err := s.client.Get(s.url + "/readyz"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the server: %w; its log: %s", ctx.Err(), s.tail())
		case err := <-s.ended:
			s.ended <- err
			return fmt.Errorf("the server ended: %w; its log: %s", err, s.tail())
		case <-again.C:
		}
	}
}

func (s *target) document(ctx context.Context) (*document, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/openapi.json", nil)
	if err != nil {
		return nil, err
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("get the document: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("get the document: %w", err)
	}
	return parse(text)
}

// judge sends a request; wrong describes an error in the answer.
func (s *target) judge(ctx context.Context, q request) (status int, wrong string) {
	complain := func(format string, args ...any) string {
		return fmt.Sprintf("%s%s?%s %.300q: ", q.op.name, q.method+q.path, q.query, q.body) + fmt.Sprintf(format, args...)
	}
	method, path := q.op.method, q.op.path
	if q.method != "" {
		method = q.method
	}
	if q.path != "" {
		path = q.path
	}
	if path == "/v1/events" { // the stream does not end
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		ctx = short
	}
	r, err := http.NewRequestWithContext(ctx, method, s.url, strings.NewReader(q.body))
	if err != nil {
		return 0, ""
	}
	r.URL.Opaque = "//" + r.URL.Host + path // the raw path
	r.URL.RawQuery = q.query
	switch q.token {
	case operator, viewer:
		r.Header.Set("Authorization", "Bearer "+s.tokens[q.token])
	case stranger:
		r.Header.Set("Authorization", "Bearer of nothing")
	}
	for k, v := range q.header {
		r.Header.Set(k, v)
	}
	answer, err := s.client.Do(r)
	if err != nil {
		if ctx.Err() != nil || strings.Contains(err.Error(), "invalid") {
			return 0, ""
		}
		return 0, complain("%v", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil && ctx.Err() == nil {
		return answer.StatusCode, complain("read the answer: %v", err)
	}
	return answer.StatusCode, s.check(q, answer, text, complain)
}

// check compares an answer with the document.
func (s *target) check(q request, answer *http.Response, text []byte, complain func(string, ...any) string) string {
	status := answer.StatusCode
	_, documented := q.op.answers[strconv.Itoa(status)]
	asDocumented := q.method == "" && q.path == ""
	switch {
	case status == http.StatusRequestHeaderFieldsTooLarge:
		return "" // by net/http, before any handler
	case status == http.StatusInternalServerError:
		return complain("500: %.300s", text)
	case asDocumented && !documented:
		return complain("%d is not documented: %.200s", status, text)
	case !asDocumented && status >= 500 && !documented:
		return complain("%d: %.200s", status, text)
	case !q.op.scope || status != http.StatusOK || !asDocumented:
	case q.token == nobody || q.token == stranger:
		return complain("the request was accepted without a valid token")
	}
	if !asDocumented || !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/json") {
		return ""
	}
	v, err := decode(bytes.TrimSpace(text))
	if err != nil {
		return complain("%d: invalid JSON: %.200q", status, text)
	}
	content, _ := q.op.answers[strconv.Itoa(status)].(map[string]any)
	media, _ := content["application/json"].(object)
	form, _ := media["schema"].(object)
	if why := fits(v, form, "answer"); why != "" {
		return complain("%d: %s", status, why)
	}
	return ""
}

// fits returns why a value does not match a schema; "" if it does.
func fits(v any, schema object, at string) string {
	switch schema["type"] {
	case "object":
		o, ok := v.(object)
		if !ok {
			return fmt.Sprintf("%s is %T, not an object", at, v)
		}
		required, _ := schema["required"].([]any)
		for _, key := range required {
			if _, there := o[fmt.Sprint(key)]; !there {
				return fmt.Sprintf("%s has no %s", at, key)
			}
		}
		properties, _ := schema["properties"].(object)
		for key, of := range properties {
			sub, _ := of.(object)
			if value, there := o[key]; there && value != nil {
				if why := fits(value, sub, at+"."+key); why != "" {
					return why
				}
			}
		}
	case "array":
		all, ok := v.([]any)
		if !ok {
			return fmt.Sprintf("%s is %T, not an array", at, v)
		}
		items, _ := schema["items"].(object)
		for i, value := range all {
			if why := fits(value, items, fmt.Sprintf("%s[%d]", at, i)); why != "" {
				return why
			}
		}
	case "string":
		if _, ok := v.(string); !ok {
			return fmt.Sprintf("%s is %T, not a string", at, v)
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			return fmt.Sprintf("%s is %T, not a boolean", at, v)
		}
	case "integer", "number":
		if _, ok := v.(float64); !ok {
			return fmt.Sprintf("%s is %T, not a number", at, v)
		}
	}
	return ""
}

// stop stops the server as systemd would and removes its files. The error is the result
// of the process.
func (s *target) stop() error {
	s.once.Do(func() {
		if s.cmd != nil && s.cmd.Process != nil {
			_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
			select {
			case s.err = <-s.ended:
			case <-time.After(30 * time.Second):
				s.err = errors.Join(errors.New("the server did not stop within 30 s"), s.cmd.Process.Kill(), <-s.ended)
			}
		}
		if s.err == nil {
			s.err = os.RemoveAll(s.dir)
		}
	})
	return s.err
}

// tail returns the end of the server's log.
func (s *target) tail() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
