package main

import (
	"testing"

	"github.com/quell-dev/quell/internal/testkit/clitest"
)

func TestManPages(t *testing.T) { clitest.Man(t, newRoot(), "8") }
