// quell is the command-line tool for users: it queries the machine's quell-agent over its
// local socket and sends it commands.
package main

import (
	"os"

	"github.com/quell-dev/quell/internal/people/cli"
)

// version is set by the linker.
var version = "devel"

func main() { os.Exit(cli.Main(version, os.Args[1:])) }
