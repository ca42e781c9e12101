package main

import (
	_ "embed" // the script
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// The network namespaces of a scene on a link, and the address at the far end.
const (
	near, far  = "quell-corpus", "quell-corpus-far"
	farAddress = "10.99.0.2"
)

// inNamespace returns a command in a network namespace.
func inNamespace(name string, words ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=" + filepath.Join("/run/netns", name)}, words...)...)
}

//go:embed link.sh
var linkScript string

// makeLink connects the two network namespaces. A link that an interrupted scene has left
// is removed first.
func makeLink(htb bool) error {
	if err := removeLink(); err != nil {
		return err
	}
	shaper := "tbf"
	if htb {
		shaper = "htb"
	}
	if out, err := exec.Command("sh", "-c", linkScript, "link.sh", near, far, farAddress, shaper).CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("make link: %w: %s", err, out), removeLink())
	}
	return nil
}

func removeLink() (err error) {
	for _, name := range []string{near, far} {
		if _, e := os.Stat(filepath.Join("/run/netns", name)); errors.Is(e, fs.ErrNotExist) {
			continue
		}
		if out, e := exec.Command("ip", "netns", "del", name).CombinedOutput(); e != nil {
			err = errors.Join(err, fmt.Errorf("remove the network namespace %s: %w: %s", name, e, out))
		}
	}
	return err
}
