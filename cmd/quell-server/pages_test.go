package main

import (
	"testing"

	"github.com/quell-dev/quell/internal/testkit/clitest"
)

// Every command line of quell-server in the pages for users is one that it accepts.
func TestPages(t *testing.T) { clitest.Pages(t, "../..", 5, command) }
