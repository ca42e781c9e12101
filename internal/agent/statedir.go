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
	"github.com/quell-dev/quell/internal/core/plan"
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

func (d *stateDir) saveSpecs(h *spec.History) error {
	return d.save("specs.json", specFile{specVersion, h.Records()})
}

// loadSpecs restores what an earlier agent learnt. A file that cannot be read is moved
// aside and learning starts again; the error says so.
func (d *stateDir) loadSpecs(h *spec.History) error {
	var f specFile
	if err := d.load("specs.json", &f); err != nil {
		return err
	}
	if f.Version != specVersion && f.Records != nil {
		return d.aside("specs.json", fmt.Errorf("version %d, want %d: learning starts again", f.Version, specVersion))
	}
	if n := h.Restore(f.Records); n > 0 {
		return fmt.Errorf("specs.json: %d of %d histories are invalid and were skipped", n, len(f.Records))
	}
	return nil
}

func (d *stateDir) saveOverrides(o *overrides) error { return d.save("overrides.json", o) }

// loadOverrides loads the complete file or nothing.
func (d *stateDir) loadOverrides(o *overrides) error {
	var read overrides
	if err := d.load("overrides.json", &read); err != nil {
		return err
	}
	*o = read
	return nil
}

func (d *stateDir) saveOffenders(all []plan.Offender) error { return d.save("offenders.json", all) }

// loadOffenders returns the complete file or nothing.
func (d *stateDir) loadOffenders() (all []plan.Offender, err error) {
	if err := d.load("offenders.json", &all); err != nil {
		return nil, err
	}
	return all, nil
}

// save replaces a file atomically: a reader sees the old or the new content, also after
// a crash.
func (d *stateDir) save(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return atomicfile.Write(filepath.Join(d.dir, name), text, 0o600)
}

// load reads a file that save wrote. A file that does not exist changes nothing; one
// that cannot be parsed is moved aside.
func (d *stateDir) load(name string, v any) error {
	path := filepath.Join(d.dir, name)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", name, err)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return d.aside(name, err)
	}
	return nil
}

// aside renames a file that cannot be used, so that it is not overwritten, and returns why.
func (d *stateDir) aside(name string, why error) error {
	kept := filepath.Join(d.dir, name+".unreadable")
	if err := os.Rename(filepath.Join(d.dir, name), kept); err != nil {
		return fmt.Errorf("read %s: %w", name, errors.Join(why, err))
	}
	return fmt.Errorf("read %s: %w; kept as %s", name, why, kept)
}
