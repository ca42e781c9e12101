package main

import (
	"flag"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/clitest"
)

var manDir = flag.String("man", "", "write the man pages to this directory (make packages)")

func TestManPages(t *testing.T) { clitest.Man(t, rootCommand(), "8", *manDir) }
