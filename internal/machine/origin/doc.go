// Package origin tells where a cgroup comes from: which container, virtual machine or service it
// is, what people call it, and what speaks for its class.
//
// Parse knows the layouts in which container runtimes, systemd, LXC and libvirt name cgroups. It
// is pure. What a path does not tell, such as the name of a pod, is read from the runtimes: CRI
// over its Unix socket, the state files of Docker and of podman, the kubelet's list of pods, and
// /proc of the cgroup's processes. These readers may be slow, so Names does it in a goroutine of
// its own, with deadlines, and answers at once with what is known.
//
// Names that a runtime or systemd gives are those of Facts.Name and Job. Nothing that a process
// says about itself is used for them, except the name that QEMU has in its arguments, and that
// yields where another task has it already.
package origin
