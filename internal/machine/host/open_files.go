package host

import "errors"

// KeepOpen sets whether the files that Usage and PSI read stay open between readings, which
// is the default, or are opened for each reading. Opening them takes four times as long
// (BenchmarkUsage) and no descriptor. A cgroup that is gone is ErrGone in both cases. Where accounts are
// read (UseAccounts), no file is kept open, and the cgroup's accounts are read with all others.
func (c *Cgroup) KeepOpen(yes bool) error {
	if c.follow() {
		yes = false
	}
	if yes && !c.closeAfterRead {
		return nil
	}
	if !yes && c.closeAfterRead {
		return nil
	}
	c.closeAfterRead = true
	if !yes {
		return c.drop()
	}
	if err := c.openStats(); err != nil { // gone, for example: the next reading reports it
		return errors.Join(err, c.drop())
	}
	c.closeAfterRead = false
	return nil
}

// OpenFiles returns how many files are open.
func (c *Cgroup) OpenFiles() int {
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
