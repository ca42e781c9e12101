// Command fetch fills the cache of kernels for guest tests (guest.Fetch). It prints what
// it downloads. If nothing is missing it does nothing and prints nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/quell-dev/quell/internal/lab/guest"
)

func main() {
	renew := flag.Bool("renew", false, "replace cached kernels with the newest")
	xen := flag.Bool("xen", false, "fetch Xen, its tools and a kernel for its domains instead (make test-xen)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	fetch := func() error { return guest.Fetch(ctx, os.Stdout, *renew, guest.AMD64, guest.ARM64) }
	if *xen {
		fetch = func() error { return guest.FetchXen(ctx, os.Stdout, *renew) }
	}
	if err := fetch(); err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}
