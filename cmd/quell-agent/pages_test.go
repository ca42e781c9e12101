package main

import (
	"testing"

	"github.com/quell-dev/quell/internal/testkit/clitest"
)

// Every command line of quell-agent in the pages for users is one that it accepts.
func TestPages(t *testing.T) { clitest.Pages(t, "../..", 10, rootCommand) }
