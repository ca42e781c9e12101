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
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := guest.Fetch(ctx, os.Stdout, *renew, guest.AMD64, guest.ARM64); err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}
