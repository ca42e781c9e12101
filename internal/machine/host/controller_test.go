package host

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// A default Debian: systemd asks for cpu at the top only.
const defaultDebian = `
-- proc/self/mountinfo --
30 1 0:1 / /cg rw - cgroup2 cgroup2 rw
-- run/systemd/system/x --
-- cg/cgroup.controllers --
cpuset cpu io memory pids
-- cg/cgroup.subtree_control --
cpu memory pids
-- cg/init.scope/cgroup.events --
populated 1
-- cg/system.slice/cgroup.subtree_control --
memory pids
-- cg/system.slice/cgroup.events --
populated 1
-- cg/system.slice/cpu.max --
max 100000
-- cg/system.slice/ended.service/cgroup.events --
populated 0
-- cg/system.slice/system-getty.slice/cgroup.events --
populated 1
-- cg/system.slice/system-getty.slice/cgroup.subtree_control --

-- cg/system.slice/system-getty.slice/getty@tty1.service/cgroup.events --
populated 1
-- cg/system.slice/web.service/cgroup.events --
populated 1
-- cg/batch.slice/cgroup.subtree_control --
cpu
-- cg/batch.slice/vm\x2d1.scope/cpu.max --
max 100000
-- cg/batch.slice/vm\x2d1.scope/cgroup.subtree_control --

-- cg/batch.slice/vm\x2d1.scope/inner/cgroup.events --
populated 1
-- cg/user.slice/cgroup.subtree_control --

-- cg/user.slice/user\x2d0.slice/cgroup.subtree_control --

-- cg/user.slice/user\x2d0.slice/session-1.scope/cgroup.events --
populated 0
-- cg/custom/cgroup.subtree_control --

-- cg/custom/$(reboot).service/cgroup.events --
frozen 0
populated 1
`

func TestACapSaysWhyTheControllerIsMissing(t *testing.T) {
	h := unpack(t, txtar.Parse([]byte(defaultDebian)))
	for path, want := range map[string]string{
		"/system.slice/web.service":                           "systemctl set-property web.service CPUWeight=100",
		"/system.slice/system-getty.slice/getty@tty1.service": "systemctl set-property getty@tty1.service CPUWeight=100",
		"/user.slice/user\\x2d0.slice":                        `systemctl set-property 'user\x2d0.slice' CPUWeight=100`,
		"/batch.slice/vm\\x2d1.scope/inner":                   `write +cpu to cgroup.subtree_control of /batch.slice/vm\x2d1.scope`,
		"/custom/$(reboot).service":                           "write +cpu to cgroup.subtree_control of /custom",
		"/user.slice/user\\x2d0.slice/session-1.scope":        "systemctl set-property session-1.scope CPUWeight=100",
	} {
		_, _, _, err := h.CapWrites(path, 0.5, 0)
		var e *ControllerError
		if !errors.As(err, &e) || !errors.Is(err, ErrNoLimit) || e.Remedy() != want || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want remedy %s", path, err, want)
		}
	}
	if _, _, _, err := h.CapWrites("/batch.slice/vm\\x2d1.scope", 0.5, 0); err != nil {
		t.Errorf("a cgroup that has the controller: %v", err)
	}
	if err := h.controllerError("cpu", "/system.slice/web.service"); !strings.Contains(err.Error(), "because cgroup.subtree_control of /system.slice lacks it") {
		t.Errorf("%v", err)
	}
	// Where systemd does not run, every cgroup that lacks it has to be written, from the top.
	bare := unpack(t, txtar.Parse([]byte(strings.Replace(defaultDebian, "run/systemd/system/x", "x", 1))))
	want := `write +cpu to cgroup.subtree_control of /user.slice, then of /user.slice/user\x2d0.slice`
	if err := bare.controllerError("cpu", `/user.slice/user\x2d0.slice/session-1.scope`); !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestUncontrolled(t *testing.T) {
	h := unpack(t, txtar.Parse([]byte(defaultDebian)))
	all, err := h.Uncontrolled("cpu")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		got = append(got, e.Lacking[0]+": "+e.Cgroup)
	}
	want := []string{"/custom: /custom/$(reboot).service", "/system.slice: /system.slice/system-getty.slice/getty@tty1.service"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	c := h.quotaCapability()
	if want := "controller cpu is not enabled in /custom, /system.slice: tasks there cannot be capped"; !c.OK || c.Reason != want {
		t.Errorf("%+v, want %s", c, want)
	}
	if c.Remedy != "for example write +cpu to cgroup.subtree_control of /custom; systemctl set-property getty@tty1.service CPUWeight=100" {
		t.Errorf("remedy %q", c.Remedy)
	}
}
