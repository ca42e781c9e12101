package cli

import (
	"testing"

	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

func TestManPages(t *testing.T) {
	clitest.Man(t, newRoot(&app.App{Getenv: func(string) string { return "" }}), "1")
}
