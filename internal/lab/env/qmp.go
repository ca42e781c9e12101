package env

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
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
	return q, q.execute("qmp_capabilities", nil, nil)
}

// execute runs a command and decodes its return into result, unless result is nil.
func (q *qmp) execute(command string, arguments map[string]any, result any) error {
	if arguments == nil {
		arguments = map[string]any{}
	}
	text, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments})
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
	if err := q.execute("query-cpus-fast", nil, &cpus); err != nil {
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

// start lets a guest run that waits for its disk, after that has got its size; 0: the
// image's. It returns the port on this machine's loopback address that leads to the
// guest's SSH.
func (q *qmp) start(disk int64) (port int, err error) {
	if disk > 0 {
		if err := q.execute("block_resize", map[string]any{"device": "drive0", "size": disk}, nil); err != nil {
			return 0, err
		}
	}
	var text string
	if err := q.execute("human-monitor-command", map[string]any{"command-line": "info usernet"}, &text); err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		// TCP[HOST_FORWARD]  13  127.0.0.1 40123  10.0.2.15 22  0  0
		if f := strings.Fields(line); len(f) >= 6 && f[0] == "TCP[HOST_FORWARD]" {
			port, err = strconv.Atoi(f[3])
		}
	}
	if err != nil || port == 0 {
		return 0, fmt.Errorf("info usernet: no forwarded port in %q", text)
	}
	return port, q.execute("cont", nil, nil)
}

// diskFull waits for the event that the host has no space for what the guest writes; then
// QEMU has stopped the guest. It returns at that event or with the connection.
func (q *qmp) diskFull() bool {
	for {
		var event struct {
			Event string `json:"event"`
			Data  struct {
				NoSpace bool `json:"nospace"`
			} `json:"data"`
		}
		if err := q.in.Decode(&event); err != nil {
			return false
		}
		if event.Event == "BLOCK_IO_ERROR" && event.Data.NoSpace {
			return true
		}
	}
}
