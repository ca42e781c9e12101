package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/atomicfile"
)

// stateDir is the state directory: specs.json, overrides.json, offenders.json, incidents.jsonl,
// audit.jsonl. The journal in the same directory belongs to the enforcer.
type stateDir struct {
	dir       string
	unread    error // why the incidents of earlier agents could not be read
	incidents *logbook.Book
	audit     logbook.RotatingFile
}

func openDisk(c *config.Agent) (*stateDir, error) {
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	size := int64(c.Log.MaxSizeMB) << 20
	d := &stateDir{dir: c.StateDir, audit: logbook.RotatingFile{Path: filepath.Join(c.StateDir, "audit.jsonl"), Max: size, Keep: c.Log.Keep}}
	d.incidents, d.unread = logbook.Open(c.StateDir, size, c.Log.Keep)
	return d, nil
}

func (d *stateDir) close() error { return errors.Join(d.incidents.Close(), d.audit.Close()) }

type specFile struct {
	Version int           `json:"version"`
	Records []spec.Record `json:"records"`
}

const specVersion = 1

// The names of files that are replaced as a whole.
const (
	specsFile     = "specs.json"
	overridesFile = "overrides.json"
	offendersFile = "offenders.json"
)

func (d *stateDir) saveSpecs(h *spec.History) error {
	return d.save(specsFile, specFile{specVersion, h.Records()})
}

// loadSpecs restores what an earlier agent learnt. A file that cannot be read is moved
// aside and learning starts again; the error says so.
func (d *stateDir) loadSpecs(h *spec.History) error {
	f, err := load[specFile](d, specsFile)
	if err != nil {
		return err
	}
	if f.Version != specVersion && f.Records != nil {
		return d.aside(specsFile, fmt.Errorf("version %d, want %d: learning starts again", f.Version, specVersion))
	}
	if n := h.Restore(f.Records); n > 0 {
		return fmt.Errorf("specs.json: %d of %d histories are invalid and were skipped", n, len(f.Records))
	}
	return nil
}

// save replaces a file atomically: a reader sees the old or the new content, also after a crash.
func (d *stateDir) save(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return atomicfile.Write(filepath.Join(d.dir, name), text, 0o600)
}

// load reads a file that save wrote, completely or not at all: v is the zero value if the
// file does not exist or, with an error, cannot be read. A file that cannot be parsed is
// moved aside.
func load[T any](d *stateDir, name string) (v T, err error) {
	text, err := os.ReadFile(filepath.Join(d.dir, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return v, nil
	case err != nil:
		return v, fmt.Errorf("read %s: %w", name, err)
	}
	var read T
	if err := json.Unmarshal(text, &read); err != nil {
		return v, d.aside(name, err)
	}
	return read, nil
}

// aside renames a file that cannot be used, so that it is not overwritten, and returns why.
func (d *stateDir) aside(name string, why error) error {
	kept := filepath.Join(d.dir, name+".unreadable")
	if err := os.Rename(filepath.Join(d.dir, name), kept); err != nil {
		return fmt.Errorf("read %s: %w", name, errors.Join(why, err))
	}
	return fmt.Errorf("read %s: %w; kept as %s", name, why, kept)
}
