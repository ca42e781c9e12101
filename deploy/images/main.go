// images writes an OCI image of one of quell's programs as an archive, without a daemon:
//
//	images -out FILE -name REFERENCE -version VERSION -time SECONDS -entrypoint PROGRAM ARCH=DIRECTORY …
//
// Each directory is the root file system of one architecture. The same files, flags and Go give the same
// bytes: files are sorted, belong to user 0 and have the given time. It is a module of its own, so
// that its dependencies are none of quell's.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// image is what a command line describes.
type image struct {
	out, name, title, description, version, revision string
	user, entrypoint                                 string
	created                                          time.Time
	platforms                                        []platform
}

// platform is the root file system of an architecture.
type platform struct{ arch, dir string }

func main() {
	m, err := parse(os.Args[1:])
	if err == nil {
		var digest v1.Hash
		if digest, err = m.write(); err == nil {
			fmt.Printf("%s %s %s\n", m.out, m.name, digest)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func parse(args []string) (*image, error) {
	var m image
	var seconds int64
	f := flag.NewFlagSet("images", flag.ContinueOnError)
	f.StringVar(&m.out, "out", "", "archive to write: an OCI image layout in a tar file")
	f.StringVar(&m.name, "name", "", "name and tag of the image, e.g. localhost/quell-agent:v1.0.0")
	f.StringVar(&m.title, "title", "", "title")
	f.StringVar(&m.description, "description", "", "what it is, in a sentence")
	f.StringVar(&m.version, "version", "", "version of the programs")
	f.StringVar(&m.revision, "revision", "", "commit of the source")
	f.StringVar(&m.user, "user", "", "UID:GID, in numbers")
	f.StringVar(&m.entrypoint, "entrypoint", "", "path of the program in the image")
	f.Int64Var(&seconds, "time", 0, "time of every file and of the image, in seconds since 1970")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	m.created = time.Unix(seconds, 0).UTC()
	for _, required := range []string{"out", "name", "user", "entrypoint"} {
		if f.Lookup(required).Value.String() == "" {
			return nil, fmt.Errorf("-%s is required", required)
		}
	}
	for _, arg := range f.Args() {
		arch, dir, ok := strings.Cut(arg, "=")
		if !ok || arch == "" || dir == "" {
			return nil, fmt.Errorf("%q: want ARCH=DIRECTORY", arg)
		}
		m.platforms = append(m.platforms, platform{arch, dir})
	}
	if len(m.platforms) == 0 {
		return nil, fmt.Errorf("want at least one ARCH=DIRECTORY")
	}
	return &m, nil
}
