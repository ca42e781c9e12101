package quelltest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// SSHD is what a test needs to run a real sshd and log in as root.
type SSHD struct {
	Argv    []string // the command that runs it, in the foreground; its log goes to standard error
	HostKey string   // its own public key, as a line
	Login   string   // the file of the private key that it accepts
	Home    string   // where its logins find their files, of all in one folder
}

// NewSSHD writes keys and a configuration for an sshd called name, with its own
// address ("10.0.0.2", "127.0.0.1:2222"), which sets env ("NAME=value") for
// each login. All in one folder accept the same key. It needs the programs sshd
// and ssh-keygen; the caller starts it where it needs it. Logins have a home of their own, since the
// files of root's, which the shell reads, may do anything.
func NewSSHD(t testing.TB, dir, name, address string, env ...string) *SSHD {
	t.Helper()
	program, err := exec.LookPath("sshd") // sshd must be called by its full path
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // sshd needs it (privilege separation)
		t.Fatal(err)
	}
	s := &SSHD{Login: filepath.Join(dir, "login"), Home: filepath.Join(dir, "home")}
	if err := os.MkdirAll(s.Home, 0o700); err != nil {
		t.Fatal(err)
	}
	sshKey(t, s.Login)
	key := filepath.Join(dir, name)
	s.HostKey = sshKey(t, key)
	config := key + ".config"
	s.Argv = []string{program, "-D", "-e", "-f", config}
	text := fmt.Sprintf("HostKey %s\nAuthorizedKeysFile %s.pub\nPermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nPidFile none\nListenAddress %s\n",
		key, s.Login, address)
	text += "SetEnv HOME=" + s.Home + " " + strings.Join(env, " ") + "\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// sshKey makes a key, unless it exists, and returns its public half as a line.
func sshKey(t testing.TB, file string) string {
	t.Helper()
	if _, err := os.Stat(file); err != nil {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", file).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	line, err := os.ReadFile(file + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(line))
}
