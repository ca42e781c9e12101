//go:build inguest

package xen

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// addressEnv is a guest's address ("10.0.0.2/24"), by a word for its kernel.
const addressEnv = "QUELL_TEST_ADDRESS"

// joinNetwork loads the modules in /modules, in the order of their names, and sets the
// guest's address. It runs as PID 1, before the agent mounts anything.
func joinNetwork() error {
	if err := errors.Join(os.MkdirAll("/sys", 0o755), unix.Mount("sysfs", "/sys", "sysfs", 0, "")); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	modules, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, file := range modules {
		if err := loadModule(file); err != nil {
			return fmt.Errorf("load %s: %w", file, err)
		}
	}
	return setAddress(os.Getenv(addressEnv))
}

func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// patienceForLink is the time limit for the interface to appear: another process sets
// up its other end.
const patienceForLink = 60 * time.Second

// setAddress gives the first Ethernet interface an IPv4 address and sets it up, and
// loopback too.
func setAddress(text string) error {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return err
	}
	name, err := firstLink(time.Now().Add(patienceForLink))
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	address := prefix.Addr().As4()
	mask := netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), prefix.Bits()).Masked().Addr().As4()
	for _, step := range []struct {
		link string
		call uint
		addr []byte
	}{{name, unix.SIOCSIFADDR, address[:]}, {name, unix.SIOCSIFNETMASK, mask[:]}, {name, unix.SIOCSIFFLAGS, nil}, {"lo", unix.SIOCSIFFLAGS, nil}} {
		r, err := unix.NewIfreq(step.link)
		if err != nil {
			return err
		}
		if step.addr == nil {
			r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		} else if err := r.SetInet4Addr(step.addr); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, step.call, r); err != nil {
			return fmt.Errorf("set up %s: %w", step.link, err)
		}
	}
	return nil
}

func firstLink(limit time.Time) (string, error) {
	for {
		links, err := filepath.Glob("/sys/class/net/*/device")
		if err != nil {
			return "", err
		}
		if len(links) > 0 {
			return filepath.Base(filepath.Dir(links[0])), nil
		}
		if time.Now().After(limit) {
			return "", errors.New("no network interface has appeared")
		}
		<-time.After(50 * time.Millisecond)
	}
}
