package env

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// qmp implements QEMU's machine protocol (qemu's docs/interop/qmp-spec.rst): JSON, one
// command and its return at a time, with events in between.
type qmp struct {
	in  *json.Decoder
	out io.Writer
}

// greet reads QEMU's greeting and ends the negotiation of capabilities.
func greet(rw io.ReadWriter) (*qmp, error) {
	q := &qmp{json.NewDecoder(rw), rw}
	var greeting struct {
		QMP *struct{} `json:"QMP"`
	}
	if err := q.in.Decode(&greeting); err != nil {
		return nil, fmt.Errorf("greet QEMU: %w", err)
	}
	if greeting.QMP == nil {
		return nil, errors.New("greet QEMU: the reply is not QMP")
	}
	return q, q.execute("qmp_capabilities", nil)
}

// execute runs a command and decodes its return into result, unless result is nil.
func (q *qmp) execute(command string, result any) error {
	text, err := json.Marshal(map[string]string{"execute": command})
	if err != nil {
		return fmt.Errorf("execute %s: %w", command, err)
	}
	if _, err := q.out.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("execute %s: %w", command, err)
	}
	for {
		var reply struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Class string `json:"class"`
				Desc  string `json:"desc"`
			} `json:"error"`
		}
		if err := q.in.Decode(&reply); err != nil {
			return fmt.Errorf("execute %s: %w", command, err)
		}
		switch {
		case reply.Error != nil:
			return fmt.Errorf("execute %s: %s: %s", command, reply.Error.Class, reply.Error.Desc)
		case reply.Return == nil: // an event
		case result == nil:
			return nil
		default:
			if err := json.Unmarshal(reply.Return, result); err != nil {
				return fmt.Errorf("execute %s: %w", command, err)
			}
			return nil
		}
	}
}

// vcpus returns the host's thread of each virtual CPU, by its number. Under TCG with a
// single thread all are equal.
func (q *qmp) vcpus() ([]int, error) {
	var cpus []struct {
		Index  int `json:"cpu-index"`
		Thread int `json:"thread-id"`
	}
	if err := q.execute("query-cpus-fast", &cpus); err != nil {
		return nil, err
	}
	threads := make([]int, len(cpus))
	for _, c := range cpus {
		if c.Index < 0 || c.Index >= len(cpus) || c.Thread <= 1 || threads[c.Index] != 0 {
			return nil, fmt.Errorf("execute query-cpus-fast: virtual CPU %d has thread %d", c.Index, c.Thread)
		}
		threads[c.Index] = c.Thread
	}
	if len(threads) == 0 || slices.Contains(threads, 0) {
		return nil, errors.New("execute query-cpus-fast: no virtual CPUs")
	}
	return threads, nil
}
