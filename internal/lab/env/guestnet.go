package env

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Words that AgentMain accepts after "tty PATH": a kernel module to load, and the
// address of the guest's first network interface.
const (
	wordModule  = "module="
	wordAddress = "address="
)

// runBootWords executes the words in their order.
func runBootWords(words []string) error {
	for _, w := range words {
		var err error
		if file, ok := strings.CutPrefix(w, wordModule); ok {
			err = loadModule(file)
		} else if text, ok := strings.CutPrefix(w, wordAddress); ok {
			err = setAddress(text)
		} else {
			err = errors.New("unknown word")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", w, err)
		}
	}
	return nil
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

// setAddress gives the first Ethernet interface an address ("10.0.0.2/24") and sets it
// up, and loopback too.
func setAddress(text string) error {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return err
	}
	if !prefix.Addr().Is4() {
		return errors.New("want an IPv4 address")
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
		time.Sleep(50 * time.Millisecond)
	}
}
