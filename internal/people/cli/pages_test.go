package cli

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

// Every command line of quell in the pages for users is one that quell accepts.
func TestPages(t *testing.T) {
	clitest.Pages(t, "../../..", 100, func() *cobra.Command { return newRoot(&app.App{Getenv: func(string) string { return "" }}) })
}
