package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

// PSI is pressure stall information (accounting/psi.rst): Some is the share of
// time in which at least one task waited for the resource, Full in which all
// did at once. Kernels before 5.13 have no Full for cpu; it is zero then.
type PSI struct{ Some, Full Stall }

// Stall is from one line of a pressure file: the average in percent over the last
// 10 s, and the total.
type Stall struct {
	Avg10 float64
	Total time.Duration
}

// PSI reads the machine's pressure on a resource ("cpu", "memory", "io") from
// /proc/pressure. It is ErrNoPSI where the kernel does not keep it.
func (h *Host) PSI(resource string) (PSI, error) {
	text, err := os.ReadFile(h.Path("/proc/pressure/" + path.Base(resource)))
	if err != nil {
		return PSI{}, fmt.Errorf("read %s pressure: %w", resource, orNoPSI(err))
	}
	return parsePSI(text)
}

// Stalled reads the total of Some of the cgroup's pressure on a resource, which
// only cgroup2 keeps: a task of the v1 cpu hierarchy has it if its processes share
// a cgroup there that is not the top. It does not allocate, for callers that read
// many cgroups often. Errors: ErrGone, ErrNoPSI.
func (c *Cgroup) Stalled(resource string) (time.Duration, error) {
	if a, ok := c.account(pressureAccount); ok && resource == "cpu" {
		if !a.HasStalled {
			return 0, ErrNoPSI
		}
		return a.Stalled, nil
	}
	buf := fileBuffers.Get().(*fileBuffer)
	defer fileBuffers.Put(buf)
	text, err := c.readPressure(resource, buf)
	if err != nil {
		return 0, err
	}
	return parseStalled(text)
}

// readPressure reads a pressure file.
func (c *Cgroup) readPressure(resource string, buf *fileBuffer) ([]byte, error) {
	f := c.pressure(resource)
	if f.fd < 0 {
		_, dir := c.pressurePlace()
		if dir == "" {
			return nil, fmt.Errorf("read %s pressure of %s: %w", resource, c.path, ErrNoPSI)
		}
		var err error
		if *f, err = c.openIn(dir, path.Base(resource)+".pressure"); err != nil {
			return nil, fmt.Errorf("read %s pressure of %s: %w", resource, c.path, orNoPSI(err))
		}
	}
	text, err := f.read(buf)
	if f.fd < 0 { // its place in cgroup2 is gone
		err = ErrNoPSI
	}
	if c.closeAfterRead {
		err = errors.Join(err, c.dropPressure())
	}
	if err != nil {
		return nil, fmt.Errorf("read %s pressure of %s: %w", resource, c.path, orNoPSI(err))
	}
	return text, nil
}

// pressurePlace returns the directory of the pressure files and the mount above it, "" if there
// are none.
func (c *Cgroup) pressurePlace() (mount, dir string) {
	if c.hier != sample.V1CPU {
		return c.tree.dir, c.Dir()
	}
	t, ok := c.h.trees[""]
	if !ok || c.places.Unified == "" || c.places.Unified == "/" {
		return "", ""
	}
	return t.dir, path.Join(t.dir, c.places.Unified)
}

// pressure returns the file entry of a resource, open or not.
func (c *Cgroup) pressure(resource string) *statFile {
	for i := range c.psi {
		if c.psi[i].resource == resource {
			return &c.psi[i].statFile
		}
	}
	c.psi = append(c.psi, pressureFile{resource, statFile{fd: -1}})
	return &c.psi[len(c.psi)-1].statFile
}

// orNoPSI adds ErrNoPSI to the errors with which kernels report that there is
// none: no file, or EOPNOTSUPP from a file that exists with psi=0.
func orNoPSI(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", ErrNoPSI, err)
	}
	return err
}

var errBadPressure = errors.New(`parse pressure: line "some" has no total`)

// parseStalled finds the total of the line that begins with some.
func parseStalled(text []byte) (time.Duration, error) {
	for len(text) > 0 {
		var line []byte
		if line, text, _ = bytes.Cut(text, []byte("\n")); !bytes.HasPrefix(line, []byte("some ")) {
			continue
		}
		_, total, _ := bytes.Cut(line, []byte(" total="))
		n, ok := parseUint(bytes.TrimSpace(total))
		if !ok {
			return 0, errBadPressure
		}
		return duration(n, time.Microsecond), nil
	}
	return 0, errBadPressure
}

// parsePSI reads lines such as
// "some avg10=0.00 avg60=0.03 avg300=1.27 total=9684323" (total in µs).
func parsePSI(text []byte) (PSI, error) {
	var p PSI
	found := false
	for line := range strings.Lines(string(text)) {
		kind, fields, _ := strings.Cut(line, " ")
		s := map[string]*Stall{"some": &p.Some, "full": &p.Full}[kind]
		if s == nil {
			continue
		}
		found = found || kind == "some"
		var avg60, avg300 float64
		var total uint64
		if _, err := fmt.Sscanf(fields, "avg10=%g avg60=%g avg300=%g total=%d", &s.Avg10, &avg60, &avg300, &total); err != nil {
			return PSI{}, fmt.Errorf("parse pressure %q: %w", line, err)
		}
		s.Total = duration(total, time.Microsecond)
	}
	if !found {
		return PSI{}, errors.New(`parse pressure: no line "some"`)
	}
	return p, nil
}
