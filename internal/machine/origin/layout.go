package origin

import (
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Runtime is what made a cgroup.
type Runtime string

// The runtimes. A container whose path does not say which runtime made it is Container.
const (
	Kubernetes Runtime = "kubernetes"
	Docker     Runtime = "docker"
	Podman     Runtime = "podman"
	Containerd Runtime = "containerd"
	CRIO       Runtime = "cri-o"
	Container  Runtime = "container"
	LXC        Runtime = "lxc"
	Libvirt    Runtime = "libvirt"
	QEMU       Runtime = "qemu"
	Machined   Runtime = "machined"
	Systemd    Runtime = "systemd"
)

// QoS is the quality of service class of a pod (the kubelet's --cgroups-per-qos).
type QoS string

// The classes of pods.
const (
	Guaranteed QoS = "Guaranteed"
	Burstable  QoS = "Burstable"
	BestEffort QoS = "BestEffort"
)

// Origin is what a cgroup's path tells. The zero value: nothing.
type Origin struct {
	Runtime Runtime
	ID      string // of the container: hexadecimal
	Pod     string // UID
	QoS     QoS    // of the pod
	Space   string // containerd's namespace, if the path has it
	Local   string // the name that the path has: of an LXC container, a virtual machine, a unit
	UID     int    // the user whose service manager or session it is in; -1: the system's
	// Helper: it serves a container and is no workload itself, such as conmon.
	Helper bool
}

// Known reports whether the layout is known.
func (o Origin) Known() bool { return o.Runtime != "" }

// Parse reads a cgroup's path below the mount of its hierarchy. Only the last name counts as the
// container, machine or unit: what is below a container or machine is part of it and is not known. Its
// tenant, who may be root there, makes cgroups with any name, such as that of another's machine.
func Parse(path string) Origin {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	o := parse(parts)
	for i := 1; o.Known() && !o.inUserSlice() && i < min(len(parts), deepest); i++ {
		// A pod of podman has the name of a container too, with containers in it.
		if in := parse(parts[:i]); in.Known() && in.Runtime != Systemd && (in.Runtime != Container || o.ID == "") {
			return Origin{UID: o.UID}
		}
	}
	return o
}

// deepest is how many cgroups are above a container at most.
const deepest = 16

func parse(parts []string) Origin {
	o := Origin{UID: -1}
	last, above := parts[len(parts)-1], parts[:len(parts)-1]
	parent := ""
	if len(above) > 0 {
		parent = above[len(above)-1]
	}
	o.UID = userOf(above)
	switch {
	case o.kubernetes(last, parent, above):
	case o.container(last, parent):
	case o.lxc(last, parent, len(above)):
	case o.machine(last, parent, above):
	case o.ctr(last, parent, len(above)):
	case o.unit(last, above):
	default:
		return Origin{UID: o.UID}
	}
	if o.Helper && o.inUserSlice() {
		if o.Helper = false; o.ID != "" { // that of the container that it serves, whose name it must not have
			o = Origin{UID: o.UID}
			o.unit(last, above)
		}
	}
	return o
}

// inUserSlice reports whether it is below the slice of a user other than root, who gives the names
// there: they could hide a task as a helper, or be those of the system's containers.
func (o Origin) inUserSlice() bool { return o.UID > 0 }

// userOf is the user's number in /user.slice/user-1000.slice. Elsewhere a container's tenant may have made one of that name.
func userOf(above []string) int {
	if len(above) < 2 || above[0] != "user.slice" {
		return -1
	}
	text, ok := strings.CutPrefix(above[1], "user-")
	if text, slice := strings.CutSuffix(text, ".slice"); ok && slice {
		if n, err := strconv.Atoi(text); err == nil && n >= 0 {
			return n
		}
	}
	return -1
}

// kubernetes: the kubelet's cgroup drivers, cgroupfs (kubepods/burstable/podUID/ID) and systemd
// (kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/RUNTIME-ID.scope, with
// "_" for "-" in UID), and a containerd that is not told that the kubelet's driver is systemd
// (system.slice/containerd.service/kubepods-burstable-podUID.slice:cri-containerd:ID).
func (o *Origin) kubernetes(last, parent string, above []string) bool {
	slice, id, colon := parent, "", false
	if first, rest, ok := strings.Cut(last, ":"); ok {
		slice, colon = first, true
		id = rest[strings.LastIndexByte(rest, ':')+1:]
	}
	pod, qos := podOf(slice)
	if pod == "" {
		return false
	}
	if !colon {
		name := strings.TrimSuffix(last, ".scope")
		i := strings.LastIndexByte(name, '-')
		runtime := name[:max(i, 0)]
		id = name[i+1:]
		o.Helper = strings.HasSuffix(runtime, "conmon")
	}
	if !isID(id) {
		return false
	}
	o.Runtime, o.Pod, o.QoS, o.ID = Kubernetes, pod, qos, id
	if qos == Guaranteed && len(above) > 1 && !colon { // cgroupfs has the class in a directory of its own
		switch above[len(above)-2] {
		case "burstable":
			o.QoS = Burstable
		case "besteffort":
			o.QoS = BestEffort
		}
	}
	return true
}

// podOf reads the UID and the class from the name of a pod's cgroup.
func podOf(name string) (uid string, qos QoS) {
	systemd := strings.HasSuffix(name, ".slice")
	name = strings.TrimSuffix(name, ".slice")
	at := strings.LastIndex(name, "pod")
	if at < 0 || at > 0 && !systemd {
		return "", ""
	}
	uid, front := name[at+len("pod"):], name[:at]
	if systemd {
		uid = strings.ReplaceAll(uid, "_", "-")
	}
	if hex := strings.ReplaceAll(uid, "-", ""); len(hex) != 32 || !isHex(hex) {
		return "", ""
	}
	switch {
	case strings.HasSuffix(front, "besteffort-"):
		return uid, BestEffort
	case strings.HasSuffix(front, "burstable-"):
		return uid, Burstable
	}
	return uid, Guaranteed
}

// scopes are the prefixes of containers' cgroups, with the systemd driver (and ".scope"), and for
// podman and CRI-O without it too.
var scopes = []struct {
	prefix  string
	runtime Runtime
	helper  bool
}{
	{"docker-", Docker, false},
	{"libpod-conmon-", Podman, true},
	{"libpod-", Podman, false},
	{"crio-conmon-", CRIO, true},
	{"crio-", CRIO, false},
	{"cri-containerd-", Containerd, false},
	{"nerdctl-", Containerd, false},
	{"buildkit-", Container, false},
}

func (o *Origin) container(last, parent string) bool {
	name := strings.TrimSuffix(last, ".scope")
	for _, s := range scopes {
		if id, ok := strings.CutPrefix(name, s.prefix); ok && isID(id) {
			o.Runtime, o.ID, o.Helper = s.runtime, id, s.helper
			return true
		}
	}
	if len(last) != 64 || !isHex(last) {
		return false
	}
	o.Runtime, o.ID = Container, last
	if parent == "docker" {
		o.Runtime = Docker
	}
	return true
}

// lxc: lxc.payload.NAME (LXC 4 and later), lxc.payload/NAME, lxc/NAME (before, and Proxmox).
func (o *Origin) lxc(last, parent string, depth int) bool {
	switch {
	case strings.HasPrefix(last, "lxc.payload.") && len(last) > len("lxc.payload."):
		o.Local = strings.TrimPrefix(last, "lxc.payload.")
	case depth == 1 && (parent == "lxc" || parent == "lxc.payload"):
		o.Local = last
	case strings.HasPrefix(last, "lxc.monitor.") || depth == 1 && parent == "lxc.monitor" || last == "lxc.pivot":
		o.Runtime, o.Local, o.Helper = LXC, last, true
		return true
	default:
		return false
	}
	o.Runtime = LXC
	return true
}

// machine: libvirt's domains, machine.slice/machine-qemu\x2d7\x2dweb.scope with systemd, or in the slices of their
// partition, and machine/qemu-7-web.libvirt-qemu without; other scopes of systemd-machined; nspawn's services;
// Proxmox's qemu.slice/101.scope. libvirt cuts long names and replaces odd characters: the
// arguments of the process have the name in full.
func (o *Origin) machine(last, parent string, above []string) bool {
	switch {
	case parent == "qemu.slice" && strings.HasSuffix(last, ".scope"):
		o.Runtime, o.Local = QEMU, strings.TrimSuffix(last, ".scope")
		return true
	case strings.HasSuffix(last, ".libvirt-qemu") || strings.HasSuffix(last, ".libvirt-lxc"):
		driver := last[strings.LastIndexByte(last, '-')+1:]
		o.libvirt(last[:strings.LastIndexByte(last, '.')], driver)
		return true
	}
	if name, ok := strings.CutPrefix(last, "systemd-nspawn@"); ok && strings.HasSuffix(name, ".service") {
		o.Runtime, o.Local = Machined, unescape(strings.TrimSuffix(name, ".service"))
		return true
	}
	name, scope := strings.CutSuffix(last, ".scope")
	name, ok := strings.CutPrefix(name, "machine-")
	inner := func(name string) bool { return !strings.HasSuffix(name, ".slice") } // a service may name its own cgroups
	if !ok || !scope || len(above) == 0 || slices.ContainsFunc(above, inner) || above[0] == "user.slice" {
		return false
	}
	name = unescape(name)
	for _, driver := range [...]string{"qemu", "lxc"} {
		if rest, ok := strings.CutPrefix(name, driver+"-"); ok {
			if number, _, ok := strings.Cut(rest, "-"); ok && isNumber(number) {
				o.libvirt(name, driver)
				return true
			}
		}
	}
	if above[0] != "machine.slice" {
		return false
	}
	o.Runtime, o.Local = Machined, name
	return true
}

// libvirt reads DRIVER-NUMBER-NAME, or NAME alone (libvirt before 1.3).
func (o *Origin) libvirt(name, driver string) {
	o.Runtime, o.Local = Libvirt, name
	if rest, ok := strings.CutPrefix(name, driver+"-"); ok {
		if number, domain, ok := strings.Cut(rest, "-"); ok && isNumber(number) {
			o.Local = domain
		}
	}
	if driver == "lxc" {
		o.Runtime = LXC
	}
}

// ctr: NAMESPACE/NAME of containerd's own namespaces, which its clients use without systemd.
func (o *Origin) ctr(last, parent string, depth int) bool {
	if depth != 1 || parent != "default" && parent != "k8s.io" {
		return false
	}
	o.Runtime, o.Space, o.Local = Containerd, parent, last
	return true
}

// unit: a service or a scope below a slice.
func (o *Origin) unit(last string, above []string) bool {
	if len(above) == 0 || !strings.HasSuffix(last, ".service") && !strings.HasSuffix(last, ".scope") {
		return false
	}
	for _, name := range above {
		manager := strings.HasPrefix(name, "user@") && strings.HasSuffix(name, ".service")
		if !strings.HasSuffix(name, ".slice") && !manager {
			return false
		}
	}
	o.Runtime, o.Local = Systemd, unescape(last)
	return true
}

// unescape undoes systemd's escapes, \x2d for "-" (systemd.unit(5)).
func unescape(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		if len(s) >= 4 && s[:2] == `\x` {
			if n, err := strconv.ParseUint(s[2:4], 16, 8); err == nil && n != 0 {
				b.WriteByte(byte(n))
				s = s[4:]
				continue
			}
		}
		b.WriteByte(s[0])
		s = s[1:]
	}
	return b.String()
}

// isID reports whether a text is a container's id: what sample.ContainerID finds.
func isID(s string) bool { return sample.ContainerID(s) == s && s != "" }

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
