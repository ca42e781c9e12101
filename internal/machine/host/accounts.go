package host

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"
)

// Account is what the kernel keeps of a cgroup itself and those below it, since it was made.
type Account struct {
	CPU, Throttled, Stalled          time.Duration
	HasCPU, HasThrottled, HasStalled bool
}

// Accounts reads the accounts of many cgroups at once; package usage has one. It is for one
// goroutine.
type Accounts interface {
	// Follow includes the cgroup with this inode in the hierarchy that is mounted in a directory
	// from the next Read on. ok is false if there is no room for it, or no such hierarchy.
	Follow(mount string, inode uint64) (row int, ok bool)
	// Unfollow ends that; it is called once for each Follow.
	Unfollow(row int) error
	Read() error
	// Row returns what the last Read found; ok is false if it did not find the cgroup.
	Row(row int) (a Account, ok bool)
	Close() error
}

// UseAccounts makes Cgroups read a's rows instead of files where they can. The Host owns it. A machine
// with more than few cgroups is walked only if that is sooner than opening files; the agent's few is
// FewCgroups.
func (h *Host) UseAccounts(a Accounts, few int) { h.accounts, h.few = a, few }

// AccountMounts returns the directories of the mounts of which Accounts are needed.
func (h *Host) AccountMounts() (dirs []string) {
	for _, name := range [...]string{"", "cpu", "cpuacct"} {
		if t, ok := h.trees[name]; ok {
			dirs = append(dirs, h.Path(t.dir))
		}
	}
	return dirs
}

// ReadAccounts reads the accounts of all cgroups that are kept open (KeepOpen). Until EndAccounts
// their Usage and Stalled return what was read here. With an error, files are read from now on; also
// for once if there are so many other cgroups that files are read sooner than all cgroups are walked.
func (h *Host) ReadAccounts() error {
	if h.accounts == nil || h.cgroups() > h.few+cgroupsPerRow*h.rows {
		return nil
	}
	err := h.accounts.Read()
	if h.accountsRead = err == nil; err == nil {
		return nil
	}
	return errors.Join(err, h.CloseAccounts())
}

// A walk over cgroups takes half a microsecond for each, with the kernel's lock on all of them held.
// Opening the files of one that is followed takes some 30 µs.
const (
	FewCgroups    = 8 << 10
	cgroupsPerRow = 64
)

// cgroups is how many there are in the hierarchies that accounts are read from, by /proc/cgroups
// (cgroups(7)); 0 if that is not known.
func (h *Host) cgroups() (n int) {
	text, err := os.ReadFile(h.Path("/proc/cgroups"))
	if err != nil {
		return 0
	}
	counted := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line) // controller, hierarchy (0: cgroup2), number of cgroups, enabled
		if len(f) != 4 || counted[f[1]] || f[1] != "0" && f[0] != "cpu" && f[0] != "cpuacct" {
			continue
		}
		counted[f[1]] = true
		more, _ := strconv.Atoi(f[2]) // the head of the table has none
		n += more
	}
	return n
}

// EndAccounts ends the validity of what ReadAccounts read.
func (h *Host) EndAccounts() { h.accountsRead = false }

// CloseAccounts closes what UseAccounts was given.
func (h *Host) CloseAccounts() error {
	a := h.accounts
	if h.accounts, h.accountsRead = nil, false; a == nil {
		return nil
	}
	return a.Close()
}

// The accounts that a Cgroup needs.
const (
	usageAccount = iota
	throttleAccount
	pressureAccount
	numAccounts
)

// account is a row of Accounts.
type account struct {
	row      int
	needed   bool // the kernel keeps it
	own      bool // it is of the cgroup itself, not of its place in another hierarchy
	followed bool // it has a row
}

// follow makes sure that the cgroup's accounts are followed, and reports whether that of its usage
// is. What is not is read from files.
func (c *Cgroup) follow() bool {
	if c.h.accounts == nil {
		return false
	}
	if c.followed {
		return c.accounts[usageAccount].followed
	}
	c.followed = true
	for i, place := range [numAccounts]func() (string, string){c.usagePlace, c.throttlePlace, c.pressurePlace} {
		a := &c.accounts[i]
		_ = c.unfollow(a) // at worst the row stays in use
		mount, dir := place()
		if dir == "" {
			continue
		}
		inode, err := c.inode, error(nil)
		if a.own = dir == c.Dir(); !a.own {
			inode, err = c.h.Inode(dir)
		}
		if a.needed = err == nil; a.needed {
			if a.row, a.followed = c.h.accounts.Follow(c.h.Path(mount), inode); a.followed {
				c.h.rows++
			}
		}
	}
	return c.accounts[usageAccount].followed
}

// unfollow's error says that a row stays in use.
func (c *Cgroup) unfollow(a *account) (err error) {
	if a.followed && c.h.accounts != nil {
		err = c.h.accounts.Unfollow(a.row)
		c.h.rows--
	}
	*a = account{}
	return err
}

func (c *Cgroup) unfollowAll() error {
	var errs []error
	for i := range c.accounts {
		errs = append(errs, c.unfollow(&c.accounts[i]))
	}
	return errors.Join(errs...)
}

// account returns one of the cgroup's accounts. ok is false if it was not read, or not for the
// place where the cgroup's processes are now.
func (c *Cgroup) account(i int) (_ Account, ok bool) {
	a := &c.accounts[i]
	if !c.h.accountsRead || !a.followed {
		return Account{}, false
	}
	return c.h.accounts.Row(a.row)
}

// accountedUsage is Usage by accounts. ok is false if files must be read: only they show that the
// cgroup is gone.
func (c *Cgroup) accountedUsage() (_ Usage, ok bool) {
	a, ok := c.account(usageAccount)
	if !ok || !a.HasCPU {
		return Usage{}, false
	}
	u := Usage{CPU: a.CPU, Throttled: a.Throttled}
	if t := &c.accounts[throttleAccount]; t.needed {
		a, ok := c.account(throttleAccount)
		if !ok && (!t.followed || t.own) {
			return Usage{}, false
		}
		u.Throttled = a.Throttled
	}
	return u, true
}
