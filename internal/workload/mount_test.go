package workload

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func TestParseMountinfo(t *testing.T) {
	for _, c := range []struct {
		host, text string
		want       mounts
	}{
		{"v2", `24 1 0:22 / /sys rw,nosuid shared:2 - sysfs sysfs rw
29 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
`, mounts{unified: "/sys/fs/cgroup"}},
		{"systemd hybrid, cpu and cpuacct together", `31 24 0:27 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw,nsdelegate
32 24 0:28 / /sys/fs/cgroup/systemd rw shared:6 - cgroup cgroup rw,xattr,name=systemd
35 24 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
36 24 0:32 / /sys/fs/cgroup/cpuset rw shared:10 - cgroup cgroup rw,cpuset
`, mounts{unified: "/sys/fs/cgroup/unified", cpu: "/sys/fs/cgroup/cpu,cpuacct"}},
		{"hybrid, each controller apart", `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
40 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`, mounts{unified: "/sys/fs/cgroup/unified", cpu: "/sys/fs/cgroup/cpu", cpuacct: "/sys/fs/cgroup/cpuacct"}},
		{"v1, mounted twice, with a blank in its path", `32 31 0:29 / /my\040cgroups/cpu rw - cgroup cgroup rw,cpu
33 31 0:29 / /mnt rw - cgroup cgroup rw,cpu
`, mounts{cpu: "/my cgroups/cpu"}},
		{"none", "22 1 8:1 / / rw - ext4 /dev/root rw\nnonsense\n- cgroup2\n", mounts{}},
	} {
		if got := parseMountinfo(c.text); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.host, got, c.want)
		}
	}
}

func FuzzParseMountinfo(f *testing.F) {
	f.Add("29 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n")
	f.Add(`32 31 0:29 / /my\040cgroups rw - cgroup cgroup rw,cpu`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, path := range parseMountinfo(text).all() {
			if path == "" || !strings.Contains(text, "cgroup") {
				t.Errorf("%q gives a mount at %q", text, path)
			}
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add("1 (a b) c) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 0 0")
	f.Add(")")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		state, _, err := parseStat(text)
		if err == nil && !strings.Contains(text, string([]byte{state})) {
			t.Errorf("%q has state %q", text, state)
		}
	})
}

func TestParseStat(t *testing.T) {
	const head = "1 (a b) c) R 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 "
	state, start, err := parseStat(head + "4711 0 0")
	if state != 'R' || start != 4711 || err != nil {
		t.Errorf("state %q, start %d, %v", state, start, err)
	}
	for _, text := range []string{"", "1 (a", "1 (a) R 0 1", head + "x 0"} {
		if _, _, err := parseStat(text); err == nil {
			t.Errorf("parsed %q", text)
		}
	}
}

func TestEnvErrorSaysWhatAndHow(t *testing.T) {
	err := mkdirError(&fs.PathError{Op: "mkdir", Path: "/sys/fs/cgroup/x", Err: fs.ErrPermission})
	env, ok := errors.AsType[*EnvError](err)
	if !ok || !errors.Is(err, fs.ErrPermission) || !strings.Contains(env.Remedy, "root") || !strings.Contains(err.Error(), env.Remedy) {
		t.Errorf("%v", err)
	}
}
