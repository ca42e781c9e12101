package remote

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Facts are what a host reports about itself.
type Facts struct {
	System  string `json:"system"`  // uname -s
	Release string `json:"release"` // uname -r
	Machine string `json:"machine"` // uname -m
}

// machines are the kernel's names of the architectures that helpers are built for.
var machines = map[elf.Machine]string{elf.EM_X86_64: "x86_64", elf.EM_AARCH64: "aarch64"}

// push copies the helper to the host, unless it is already there, and returns its path.
// The path is in the user's cache, not in /tmp, which may not allow execution.
func push(c *ssh.Client, host, helper string) (path string, f Facts, err error) {
	const begin = "quell-begin\n"
	out, err := command(c, `printf `+quote(begin)+`; uname -s; uname -r; uname -m; echo "${XDG_CACHE_HOME:-$HOME/.cache}/quell"`, nil)
	if err != nil {
		return "", f, fmt.Errorf("identify host %s: %w", host, err)
	}
	before, out, _ := strings.Cut(out, begin)
	if before != "" { // it would be mixed with the helper's messages
		return "", f, fmt.Errorf("host %s: the login shell prints %.200q before each command: let its start-up files, e.g. ~/.bashrc, print only in interactive shells", host, before)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 4 {
		return "", f, fmt.Errorf("identify host %s: it answers %q", host, out)
	}
	f = Facts{lines[0], lines[1], lines[2]}
	data, err := os.ReadFile(helper)
	if err != nil {
		return "", f, fmt.Errorf("read helper: %w", err)
	}
	program, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return "", f, fmt.Errorf("read helper %s: %w", helper, err)
	}
	if f.System != "Linux" || machines[program.Machine] != f.Machine {
		return "", f, fmt.Errorf("host %s is %s %s, but the helper %s is for %s on Linux: use another helper", host, f.System, f.Machine, helper, machines[program.Machine])
	}
	hash := hashOf(data)
	dir := lines[3]
	path = helperPath(dir, hash)
	is := fmt.Sprintf("test \"$(sha256sum < %s 2>/dev/null | cut -d' ' -f1)\" = %s", quote(path), hash)
	if _, err := command(c, is, nil); err == nil {
		return path, f, nil
	}
	// The file gets its name last: a file with that name is complete.
	_, err = command(c, fmt.Sprintf(`umask 077 && mkdir -p %[1]s && cat > %[2]s.$$ && chmod 700 %[2]s.$$ && mv %[2]s.$$ %[2]s && %[3]s`,
		quote(dir), quote(path), is), bytes.NewReader(data))
	if err != nil {
		return "", f, fmt.Errorf("push the helper to host %s: %w", host, err)
	}
	return path, f, nil
}

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// helperPath is the path of a helper with that hash, below the cache's directory.
func helperPath(dir, hash string) string { return dir + "/lab-" + hash[:16] }

// command runs a command with the host's shell and returns its output. What it complains of is in the
// error only: the shell's start-up files may complain of something else.
func command(c *ssh.Client, line string, in io.Reader) (string, error) {
	s, err := c.NewSession()
	if err != nil {
		return "", err
	}
	defer s.Close()
	var complaint bytes.Buffer
	s.Stdin, s.Stderr = in, &complaint
	out, err := s.Output(line)
	if err != nil && complaint.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
	return string(out), err
}

// quote quotes a word for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
