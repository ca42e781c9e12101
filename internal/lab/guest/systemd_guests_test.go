//go:build guests

package guest

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSystemd runs the packaged units under the host's systemd as PID 1: the service
// manager enforces their sandbox.
func TestSystemd(t *testing.T) {
	const pkg = "internal/lab/guest/inside/systemd"
	deploy := "../../../deploy/systemd/"
	b := box{
		Machine:  Machine{Arch: AMD64, InstructionNS: 8, MemoryMB: 1536, Append: "rdinit=/lib/systemd/systemd systemd.unit=test.target systemd.show_status=0 systemd.log_target=kmsg"},
		tests:    []insideTest{{pkg: pkg}},
		deadline: 15 * time.Minute, // long enough on a busy host
	}
	for _, program := range []string{"/lib/systemd/systemd", "/lib/systemd/systemd-shutdown", "/bin/systemctl", "/usr/bin/systemd-analyze", "/bin/sh", "/bin/mount", "/bin/umount"} {
		b.files = append(b.files, hostProgram(t, b.files, program)...)
	}
	for _, target := range []string{"basic", "sysinit", "shutdown", "umount", "final", "local-fs", "local-fs-pre", "swap", "sockets", "timers", "paths", "slices", "multi-user"} {
		b.files = append(b.files, File{Path: "/lib/systemd/system/" + target + ".target", Mode: 0o644, From: "/lib/systemd/system/" + target + ".target"})
	}
	b.files = append(b.files, File{Path: "/lib/systemd/system/sys-kernel-tracing.mount", Mode: 0o644, From: "/lib/systemd/system/sys-kernel-tracing.mount"})
	const task = "ExecStart=/tests/0-systemd.test task\nCPUWeight=100\n"
	for name, text := range map[string]string{
		"/etc/passwd":                        "root:x:0:0:root:/root:/bin/sh\nquell-server:x:990:990::/var/lib/quell-server:/bin/false\n",
		"/etc/group":                         "root:x:0:\nquell-server:x:990:\n",
		"/etc/os-release":                    "ID=guest\n",
		"/etc/machine-id":                    "0123456789abcdef0123456789abcdef\n",
		"/etc/systemd/system.conf":           "[Manager]\nDefaultStandardOutput=append:/run/agent.log\nDefaultTimeoutStartSec=300s\n",
		"/lib/systemd/system/test.target":    "[Unit]\nRequires=sys-kernel-tracing.mount file.service scrape.service uprobe.service test.service\n",
		"/lib/systemd/system/file.service":   "[Service]\nEnvironment=QUELL_PROGRESS=/run/progress\n" + task,
		"/lib/systemd/system/scrape.service": "[Service]\n" + task,
		"/lib/systemd/system/uprobe.service": "[Service]\n" + task,
		"/lib/systemd/system/test.service":   "[Service]\nType=oneshot\nTimeoutStartSec=infinity\nStandardOutput=tty\nStandardError=tty\nExecStart=/bin/sh /tests/run\n",
		"/tests/run":                         "/tests/0-systemd.test -test.v=test2json -test.timeout=10m\ncode=$?\necho\necho GUEST-EXIT $code\n/bin/systemctl poweroff --force --force\n",
		"/etc/quell/server.yaml":             "bus: {waiting_mb: 48}\n",
		"/etc/quell/agent.yaml": `signals: [cpi, cpt, cps, runq]
tick: 200ms
sampling: {duration: 1s, period: 2s, max_tax: 0}
rules:
  - {match: /system.slice/file.service, class: batch}
  - {match: /system.slice/scrape.service, class: batch, prometheus: {port: 8080, metric: transactions_total}}
  - match: /system.slice/uprobe.service
    class: batch
    uprobe: {binary: /tests/0-systemd.test, symbol: ` + module + pkg + `.transaction}
`,
	} {
		b.files = append(b.files, File{Path: name, Mode: 0o644, Data: []byte(text)})
	}
	server := hostProgram(t, b.files, build(t, AMD64, "program with C", "cmd/quell-server"))
	server[0].Path = "/usr/bin/quell-server" // the program itself; the rest are its libraries
	b.files = append(b.files, server...)
	b.files = append(b.files,
		File{Path: "/lib/systemd/system/quell-server.service", Mode: 0o644, From: deploy + "quell-server.service"},
		File{Path: "/lib/systemd/system/quell-agent.service", Mode: 0o644, From: deploy + "quell-agent.service"},
		File{Path: "/lib/systemd/system/quell-restore.service", Mode: 0o644, From: deploy + "quell-restore.service"},
		File{Path: "/lib/systemd/system/quell-restore.timer", Mode: 0o644, From: deploy + "quell-restore.timer"},
		File{Path: "/usr/lib/quell-agent-containers.conf", Mode: 0o644, From: deploy + "quell-agent-containers.conf"},
		File{Path: "/usr/bin/quell-agent", From: build(t, AMD64, "program", "cmd/quell-agent")})
	b.run(t)
}

// hostProgram returns one of this machine's programs with the libraries it needs that are
// not yet among the files. They are found as the loader finds them (DT_NEEDED), in
// Debian's directories.
func hostProgram(t *testing.T, have []File, program string) []File {
	t.Helper()
	if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
		t.Fatal(&MissingError{program, "apt-get install --no-install-recommends systemd systemd-sysv", err})
	}
	there := map[string]bool{}
	for _, f := range have {
		there[f.Path] = true
	}
	var files []File
	var add func(name string)
	add = func(name string) {
		if there[name] {
			return
		}
		there[name] = true
		files = append(files, File{Path: name, From: name})
		f, err := elf.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, s := range f.Progs {
			if s.Type == elf.PT_INTERP {
				text := make([]byte, s.Filesz)
				if _, err := s.ReadAt(text, 0); err != nil {
					t.Fatal(err)
				}
				add(strings.TrimRight(string(text), "\x00"))
			}
		}
		needed, err := f.ImportedLibraries()
		if err != nil {
			t.Fatal(err)
		}
		for _, lib := range needed {
			found := false
			for _, dir := range []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/systemd", "/lib/systemd"} {
				if path := filepath.Join(dir, lib); !found {
					if _, err := os.Stat(path); err == nil {
						found = true
						add(path)
					}
				}
			}
			if !found && lib != "ld-linux-x86-64.so.2" {
				t.Fatalf("%s needs %s, which is nowhere", name, lib)
			}
		}
	}
	add(program)
	return files
}
