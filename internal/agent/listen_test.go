package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func listen(t *testing.T, path, group string) net.Listener {
	t.Helper()
	l, err := ListenSocket(path, group)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// The socket is for the agent's user and at most one group, whatever the umask.
func TestSocketPermissions(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	group, err := user.LookupGroupId("1")
	if err != nil {
		t.Fatal(err)
	}
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	for _, c := range []struct {
		group string
		gid   uint32
		mode  fs.FileMode
	}{{"", 0, 0o600}, {group.Name, 1, 0o660}} {
		path := filepath.Join(t.TempDir(), "made", "agent.sock")
		listen(t, path, c.group)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		st := info.Sys().(*syscall.Stat_t)
		if info.Mode() != fs.ModeSocket|c.mode || st.Uid != 0 || st.Gid != c.gid {
			t.Errorf("group %q: mode %v, owner %d:%d", c.group, info.Mode(), st.Uid, st.Gid)
		}
	}
}

func TestSocketIsTakenOverFromTheDeadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	l := listen(t, path, "")
	if _, err := ListenSocket(path, ""); err == nil || !strings.Contains(err.Error(), "another agent answers there") {
		t.Errorf("next to a running agent: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close() // as SIGKILL leaves it
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	l = listen(t, path, "")
	l.Close()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after a clean end: %v", err)
	}
}

// A wrong path does not delete a file.
func TestSocketDoesNotReplaceFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "precious")
	put(t, filepath.Dir(path), "precious", "data")
	if _, err := ListenSocket(path, ""); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("got %v", err)
	}
	if got := slurp(t, filepath.Dir(path), "precious"); got != "data" {
		t.Errorf("the file is %q", got)
	}
	if _, err := ListenSocket(filepath.Join(path, "below", "agent.sock"), ""); err == nil {
		t.Error("a directory was made in a file")
	}
	if _, err := ListenSocket(filepath.Join(t.TempDir(), "s"), "no-such-group"); err == nil || !strings.Contains(err.Error(), "no-such-group") {
		t.Errorf("got %v", err)
	}
}

// The kernel identifies the peer.
func TestPeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	l := listen(t, path, "")
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	who, _ := withPeer(context.Background(), s).Value(peerKey{}).(string)
	if want := fmt.Sprintf("uid %d, pid %d", os.Getuid(), os.Getpid()); !strings.Contains(who, want) {
		t.Errorf("peer %q, want %q in it", who, want)
	}
}
