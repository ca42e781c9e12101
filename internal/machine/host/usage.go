package host

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what a cgroup and those below it have used since it was made.
type Usage struct {
	CPU time.Duration // CPU time
	// Throttled is how long the cgroup's CPUs were throttled because it used up its
	// quota. It is 0 if the cgroup has no place of its own in the cpu controller.
	Throttled time.Duration
}

// Usage reads the CPU time from cpu.stat (cgroup2) or cpuacct.usage (v1), and
// the throttling from cpu.stat of the cpu controller, at the last result of
// Places. It does not allocate. Errors: ErrGone, ErrNoUsage.
func (c *Cgroup) Usage() (Usage, error) {
	if u, ok := c.accountedUsage(); ok {
		return u, nil
	}
	if c.closeAfterRead {
		defer c.drop()
		if err := c.openStats(); err != nil {
			return Usage{}, fmt.Errorf("read usage of %s: %w", c.path, err)
		}
	}
	var u Usage
	// The cgroup's own file first: only it shows that the cgroup is gone.
	if c.throttle.fd >= 0 && c.throttle.own {
		if err := c.readStat(&c.throttle, &u); err != nil {
			return Usage{}, err
		}
	}
	if c.usage.fd < 0 {
		return Usage{}, ErrNoUsage
	}
	if err := c.readStat(&c.usage, &u); err != nil {
		return Usage{}, err
	}
	if c.usage.fd < 0 {
		return Usage{}, ErrNoUsage
	}
	if c.throttle.fd >= 0 && !c.throttle.own {
		if err := c.readStat(&c.throttle, &u); err != nil {
			return Usage{}, err
		}
	}
	return u, nil
}

// CPUTime returns a function that reads the CPU time of Usage at the cgroup's present place. Unlike
// the Cgroup it may be called from any goroutine, also after Close.
func (c *Cgroup) CPUTime() func() (time.Duration, error) {
	_, dir := c.usagePlace()
	name := c.usageFile()
	return func() (time.Duration, error) {
		if dir == "" {
			return 0, ErrNoUsage
		}
		f, err := c.openIn(dir, name)
		if err != nil {
			return 0, fmt.Errorf("read usage of %s: %w", c.path, orGone(err))
		}
		defer f.close()
		var buf fileBuffer
		n, err := unix.Pread(f.fd, buf[:], 0)
		if err != nil {
			return 0, fmt.Errorf("read usage of %s: %w", c.path, err)
		}
		var u Usage
		u.parse(buf[:n])
		return u.CPU, nil
	}
}

func (c *Cgroup) readStat(f *statFile, u *Usage) error {
	buf := fileBuffers.Get().(*fileBuffer)
	defer fileBuffers.Put(buf)
	text, err := f.read(buf)
	if err != nil {
		if errors.Is(err, ErrGone) {
			return err
		}
		return fmt.Errorf("read usage of %s: %w", c.path, err)
	}
	u.parse(text)
	return nil
}

// parse reads the fields it knows from cpu.stat (both versions) or
// cpuacct.usage (a bare number of ns).
func (u *Usage) parse(text []byte) {
	for len(text) > 0 {
		var line []byte
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			line, text = text, nil
		}
		i := bytes.IndexByte(line, ' ')
		n, ok := parseUint(line[i+1:])
		if !ok {
			continue
		}
		if i < 0 {
			u.CPU = duration(n, time.Nanosecond)
			continue
		}
		switch string(line[:i]) {
		case "usage_usec":
			u.CPU = duration(n, time.Microsecond)
		case "throttled_usec": // cgroup2
			u.Throttled = duration(n, time.Microsecond)
		case "throttled_time": // v1
			u.Throttled = duration(n, time.Nanosecond)
		}
	}
}

// duration returns n units, at most the longest duration.
func duration(n uint64, unit time.Duration) time.Duration {
	if n > math.MaxInt64/uint64(unit) {
		return math.MaxInt64
	}
	return time.Duration(n) * unit
}
