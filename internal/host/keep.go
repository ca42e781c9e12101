package host

import "errors"

// Keep says whether the files that Usage and PSI read stay open from one reading to
// the next, as they do until told otherwise, or are opened for each: that takes
// four times as long (BenchmarkUsage) and no descriptor. A cgroup that is gone
// is ErrGone either way.
func (c *Cgroup) Keep(yes bool) error {
	c.brief = true
	if !yes {
		return c.drop()
	}
	if err := c.openStats(); err != nil { // gone, say: the next reading tells
		return errors.Join(err, c.drop())
	}
	c.brief = false
	return nil
}

// Files returns how many files are open.
func (c *Cgroup) Files() int {
	n := len(c.psi)
	for _, f := range []statFile{c.usage, c.throttle} {
		if f.fd >= 0 {
			n++
		}
	}
	return n
}

// drop closes all files.
func (c *Cgroup) drop() error {
	err := errors.Join(c.usage.close(), c.throttle.close())
	for resource, f := range c.psi {
		err = errors.Join(err, f.close())
		delete(c.psi, resource)
	}
	return err
}
