// Command fetch makes a Debian host ready for guest tests: it installs QEMU and
// what kernel modules are built with where they are missing, and fills the
// cache of kernels (guest.Fetch). It says what it does; where all is there, it
// does and says nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"

	"github.com/quell-dev/quell/internal/guest"
)

// programs are what the tests run, with the package of each.
var programs = [][2]string{
	{"qemu-system-aarch64", "qemu-system-arm"}, {"qemu-system-x86_64", "qemu-system-x86"}, {"depmod", "kmod"},
	{"xz", "xz-utils"}, {"make", "make"}, {"gcc", "gcc"}, {"aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"},
}

func main() {
	renew := flag.Bool("renew", false, "replace the kernels that are there by the newest")
	xen := flag.Bool("xen", false, "fetch Xen, its tools and a kernel for its domains instead (make test-xen)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := fetch(ctx, *renew, *xen); err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}

func fetch(ctx context.Context, renew, xen bool) error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p[0]); err != nil {
			missing = append(missing, p[1])
		}
	}
	if len(missing) > 0 {
		if err := install(ctx, missing); err != nil {
			return err
		}
	}
	if xen {
		return guest.FetchXen(ctx, os.Stdout, renew)
	}
	return guest.Fetch(ctx, os.Stdout, renew, guest.AMD64, guest.ARM64)
}

func install(ctx context.Context, packages []string) error {
	args := append([]string{"install", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"}, packages...)
	fmt.Println("guest tests need: apt-get", strings.Join(args, " "))
	for _, args := range [][]string{{"update", "-qq"}, args} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
