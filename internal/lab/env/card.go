package env

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// guestModules is where a guest's initramfs has the modules of its network card's driver, named
// in the order to load them.
const guestModules = "/modules"

// patienceWithCard is how long a guest's network card may take to appear: another process of
// the host makes its other end.
const patienceWithCard = time.Minute

// joinNetwork loads the driver of a guest's network card and gives the card an address.
func joinNetwork(address string) error {
	modules, err := filepath.Glob(guestModules + "/*.ko*")
	if err != nil {
		return err
	}
	slices.Sort(modules)
	for _, file := range modules {
		if err := loadModule(file); err != nil {
			return fmt.Errorf("load %s: %w", file, err)
		}
	}
	prefix, err := netip.ParsePrefix(address)
	if err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	card, err := networkCard(time.Now().Add(patienceWithCard))
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(card, &netlink.Addr{IPNet: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}}); err != nil {
		return fmt.Errorf("add address %s: %w", prefix, err)
	}
	return errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(card))
}

// loadModule loads a module; the kernel itself unpacks a compressed one (finit_module(2)).
func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(file, ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// networkCard waits for the first network interface of a device.
func networkCard(limit time.Time) (netlink.Link, error) {
	for {
		links, err := filepath.Glob("/sys/class/net/*/device")
		if err != nil {
			return nil, err
		}
		if len(links) > 0 {
			return netlink.LinkByName(filepath.Base(filepath.Dir(links[0])))
		}
		if time.Now().After(limit) {
			return nil, fmt.Errorf("no network card after %s", patienceWithCard)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
