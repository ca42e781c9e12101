package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// makeLink connects two network namespaces by a link that sends 20 Mbit/s out of the near
// one, which has the tasks: by a token bucket with a queue of 200 kB, or by a class of HTB
// with one of 100 packets, as Kubernetes' and libvirt's limits are. A link that an
// interrupted scene has left is removed first.
func makeLink(htb bool) error {
	if err := removeLink(); err != nil {
		return err
	}
	lines := []string{
		"ip netns add " + near, "ip netns add " + far,
		"ip -n " + near + " link add q0 type veth peer name q1 netns " + far,
		"ip -n " + near + " addr add 10.99.0.1/24 dev q0", "ip -n " + far + " addr add " + farAddress + "/24 dev q1",
		"ip -n " + near + " link set lo up", "ip -n " + far + " link set lo up",
		"ip -n " + near + " link set q0 up", "ip -n " + far + " link set q1 up",
	}
	q0 := "tc -n " + near + " %s add dev q0 "
	if htb {
		lines = append(lines, fmt.Sprintf(q0, "qdisc")+"root handle 1: htb default 10", fmt.Sprintf(q0, "class")+"parent 1: classid 1:10 htb rate 20mbit burst 4kb",
			fmt.Sprintf(q0, "qdisc")+"parent 1:10 pfifo limit 100")
	} else {
		lines = append(lines, fmt.Sprintf(q0, "qdisc")+"root handle 1: tbf rate 20mbit burst 4kb limit 200kb")
	}
	for _, line := range lines {
		words := strings.Fields(line)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return errors.Join(fmt.Errorf("%s: %w: %s", line, err, out), removeLink())
		}
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
