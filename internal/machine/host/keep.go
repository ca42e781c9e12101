package host

import "errors"

// Keep sets whether the files that Usage and PSI read stay open between readings, which
// is the default, or are opened for each reading. Opening them takes four times as long
// (BenchmarkUsage) and no descriptor. A cgroup that is gone is ErrGone in both cases.
func (c *Cgroup) Keep(yes bool) error {
	if yes && !c.brief {
		return nil
	}
	c.brief = true
	if !yes {
		return c.drop()
	}
	if err := c.openStats(); err != nil { // gone, for example: the next reading reports it
		return errors.Join(err, c.drop())
	}
	c.brief = false
	return nil
}

// Files returns how many files are open.
func (c *Cgroup) Files() int {
	n := 0
	for _, fd := range [...]int{c.usage.fd, c.throttle.fd} {
		if fd >= 0 {
			n++
		}
	}
	for i := range c.psi {
		if c.psi[i].fd >= 0 {
			n++
		}
	}
	return n
}

// drop closes all files.
func (c *Cgroup) drop() error {
	return errors.Join(c.usage.close(), c.throttle.close(), c.dropPressure())
}

func (c *Cgroup) dropPressure() error {
	var err error
	for i := range c.psi {
		err = errors.Join(err, c.psi[i].close())
	}
	return err
}
