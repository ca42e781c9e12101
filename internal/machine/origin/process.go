package origin

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/machine/host"
)

// Process is what a cgroup's processes tell. The zero value: nothing was read.
type Process struct {
	Read    bool   // the fields below are known
	Command string // of the oldest process: its arguments, joined by spaces
	Guest   string // the name of the virtual machine that QEMU runs; "" if there is none
	VCPUs   int    // threads that run its CPUs
	Listens []int  // TCP ports that connections are accepted at, ascending
	Nice    int    // the lowest niceness
	Policy  Policy
	Unread  string // why sockets are not known
}

// Policy is the scheduling policy that all processes have.
type Policy string

// Policies that ask for less than an ordinary share of CPU time (sched(7)).
const (
	Ordinary   Policy = ""
	SchedIdle  Policy = "SCHED_IDLE"
	SchedBatch Policy = "SCHED_BATCH"
)

// Bounds of what is read of one cgroup.
const (
	mostProcesses = 64
	mostFiles     = 4096    // open files of a process
	mostSockets   = 4 << 20 // bytes of a list of sockets
	mostArguments = 16 << 10
)

// processes reads /proc of the processes of a cgroup, oldest first. Arguments are memory of the
// process, which may make the reader wait: the caller has a deadline.
func processes(h *host.Host, pids []int) (p Process) {
	proc := func(pid int, file string) string { return h.Path("/proc/" + strconv.Itoa(pid) + "/" + file) }
	all := 0
	sockets := map[string]bool{}
	networks := map[string]int{} // a process of each network namespace
	policies := map[int]int{}
	for _, pid := range pids[:min(len(pids), mostProcesses)] {
		st, err := host.ReadProcessStat(proc(pid, "stat"))
		if err != nil || st.State == 'Z' || st.State == 'X' {
			continue
		}
		if all == 0 {
			p.Command = strings.Join(arguments(proc(pid, "cmdline")), " ")
		}
		if all++; all == 1 || st.Nice < p.Nice {
			p.Nice = st.Nice
		}
		policies[st.Policy]++
		if exe, err := os.Readlink(proc(pid, "exe")); err == nil && p.Guest == "" && isQEMU(exe) {
			if p.Guest = guestName(arguments(proc(pid, "cmdline"))); p.Guest != "" {
				p.VCPUs = vcpus(proc(pid, "task"))
			}
		}
		if err := openSockets(proc(pid, "fd"), sockets); err != nil {
			p.Unread = err.Error()
		}
		if ns, err := os.Readlink(proc(pid, "ns/net")); err == nil {
			networks[ns] = pid
		}
	}
	p.Read = all > 0
	switch all {
	case 0:
	case policies[5]: // linux/sched.h: SCHED_IDLE
		p.Policy = SchedIdle
	case policies[3]: // SCHED_BATCH
		p.Policy = SchedBatch
	}
	if len(sockets) == 0 {
		return p
	}
	for _, pid := range networks {
		for _, file := range [...]string{"net/tcp", "net/tcp6"} {
			text, err := readAtMost(proc(pid, file), mostSockets)
			if err == nil {
				p.Listens = append(p.Listens, listening(text, sockets)...)
			}
		}
	}
	slices.Sort(p.Listens)
	p.Listens = slices.Compact(p.Listens)
	return p
}

func readAtMost(file string, most int) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text := make([]byte, 0, 4096)
	for len(text) < most {
		text = slices.Grow(text, 4096)
		n, err := f.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if n == 0 || err != nil {
			break
		}
	}
	return text, nil
}

func arguments(file string) []string {
	text, err := readAtMost(file, mostArguments)
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(strings.ToValidUTF8(string(bytes.TrimRight(text, "\x00")), "\uFFFD"), "\x00")
}

// openSockets adds the inodes of the sockets that a process has open.
func openSockets(dir string, all map[string]bool) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("read sockets: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(mostFiles)
	for _, name := range names {
		to, bad := os.Readlink(dir + "/" + name)
		if inode, ok := strings.CutPrefix(to, "socket:["); ok && bad == nil {
			all[strings.TrimSuffix(inode, "]")] = true
		}
	}
	if len(names) > 0 {
		err = nil
	}
	return err
}

// stateListen is TCP_LISTEN as /proc/net/tcp has it (linux/net/tcp_states.h).
const stateListen = "0A"

// listening returns the ports of the sockets that accept connections and are among the open ones,
// from a table such as /proc/PID/net/tcp (proc_pid_net(5)).
func listening(table []byte, open map[string]bool) (ports []int) {
	for line := range bytes.Lines(table) {
		f := strings.Fields(string(line))
		if len(f) < 10 || f[3] != stateListen || !open[f[9]] {
			continue
		}
		if _, port, ok := strings.Cut(f[1], ":"); ok {
			if n, err := strconv.ParseUint(port, 16, 16); err == nil {
				ports = append(ports, int(n))
			}
		}
	}
	return ports
}

func isQEMU(exe string) bool {
	name := path.Base(strings.TrimSuffix(exe, " (deleted)"))
	return strings.HasPrefix(name, "qemu-system-") || name == "qemu-kvm" || name == "kvm"
}

// guestName is the name in QEMU's arguments: -name web, -name guest=web,debug-threads=on; without
// one, "pid" and the UUID are no names. A comma in a name is doubled.
func guestName(args []string) string {
	for i, a := range args {
		if a != "-name" && a != "--name" || i+1 == len(args) {
			continue
		}
		const comma = "\x00"
		for n, part := range strings.Split(strings.ReplaceAll(args[i+1], ",,", comma), ",") {
			key, value, named := strings.Cut(part, "=")
			switch {
			case named && key == "guest":
				return strings.ReplaceAll(value, comma, ",")
			case !named && n == 0:
				return strings.ReplaceAll(part, comma, ",")
			}
		}
	}
	return ""
}

// vcpus counts the threads that QEMU names "CPU 0/KVM" or "CPU 0/TCG" (with debug-threads=on, as
// libvirt sets it).
func vcpus(dir string) (n int) {
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, t := range tasks[:min(len(tasks), mostFiles)] {
		comm, err := os.ReadFile(dir + "/" + t.Name() + "/comm")
		if err != nil {
			continue
		}
		if rest, ok := strings.CutPrefix(string(comm), "CPU "); ok {
			if number, _, ok := strings.Cut(rest, "/"); ok && isNumber(number) {
				n++
			}
		}
	}
	return n
}
