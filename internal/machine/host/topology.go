package host

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Topology describes the online CPUs according to sysfs. In a guest that is
// what the hypervisor reports, which need not be how the CPUs are placed.
type Topology struct {
	Online sample.Set
	CPUs   []CPU  // by ascending ID
	Memory []Node // by ascending ID; none where the kernel knows none
}

// Node is a memory node.
type Node struct {
	ID   int
	CPUs sample.Set // those online; none for a node of memory only
}

// CPU is one logical CPU.
type CPU struct {
	ID      int
	Package int // physical_package_id
	Core    int // core_id, unique in a package
	Node    int // memory node; 0 where the kernel knows none
	// Siblings are the logical CPUs of the same core, itself included.
	Siblings sample.Set
	LLC      Cache
}

// Cache is a last-level cache: the one of the highest level that holds data.
type Cache struct {
	// ID is the kernel's cache id (the one resctrl uses); the lowest CPU that
	// shares the cache where the kernel gives none; -1 if nothing is known.
	ID   int
	Size int64 // bytes, 0 if not known
	CPUs sample.Set
}

// Units returns the ids of the last-level caches that are known, those of the memory
// nodes, and whether any core has more than one CPU online.
func (t Topology) Units() (caches, nodes sample.Set, smt bool) {
	for _, c := range t.CPUs {
		caches, nodes = caches.With(c.LLC.ID), nodes.With(c.Node)
		smt = smt || c.Siblings.Len() > 1
	}
	return caches, nodes, smt
}

// Online reads which CPUs are online.
func (h *Host) Online() (sample.Set, error) {
	online, err := h.readSet(cpuDir + "/online")
	if err != nil {
		return nil, fmt.Errorf("read online CPUs: %w", err)
	}
	return online, nil
}

const cpuDir = "/sys/devices/system/cpu"

// Topology reads /sys/devices/system/cpu and node
// (Documentation/ABI/stable/sysfs-devices-system-cpu). Only the list of online
// CPUs must be there; arm64 and many guests have no more.
func (h *Host) Topology() (Topology, error) {
	online, err := h.readSet(cpuDir + "/online")
	if err != nil {
		return Topology{}, fmt.Errorf("read topology: %w", err)
	}
	t := Topology{Online: online}
	if t.Memory, err = h.memoryNodes(); err != nil {
		return Topology{}, fmt.Errorf("read topology: %w", err)
	}
	nodes := make(map[int]int)
	for _, n := range t.Memory {
		for _, cpu := range n.CPUs.Numbers() {
			nodes[cpu] = n.ID
		}
	}
	for _, id := range online.Numbers() {
		c := CPU{ID: id, Package: -1, Core: -1, Node: nodes[id]}
		dir := fmt.Sprintf("%s/cpu%d", cpuDir, id)
		c.Package = h.readInt(dir+"/topology/physical_package_id", -1)
		c.Core = h.readInt(dir+"/topology/core_id", -1)
		// thread_siblings_list is the older name (kernels before 5.3).
		for _, name := range [...]string{"core_cpus_list", "thread_siblings_list"} {
			if c.Siblings, err = h.readSet(dir + "/topology/" + name); err == nil {
				break
			}
		}
		if !c.Siblings.Has(id) {
			c.Siblings = sample.SetOf(id)
		}
		c.LLC = h.llc(dir, id)
		t.CPUs = append(t.CPUs, c)
	}
	t.checkCacheIDs()
	return t, nil
}

// llc finds a CPU's highest cache that holds data.
func (h *Host) llc(dir string, cpu int) Cache {
	llc, highest := Cache{ID: -1}, 0
	for i := 0; ; i++ {
		index := fmt.Sprintf("%s/cache/index%d", dir, i)
		kind, err := h.ReadValue(index + "/type")
		if err != nil {
			return llc
		}
		level := h.readInt(index+"/level", 0)
		cpus, err := h.readSet(index + "/shared_cpu_list")
		if kind == "Instruction" || level <= highest || err != nil || !cpus.Has(cpu) {
			continue
		}
		highest = level
		llc = Cache{ID: h.readInt(index+"/id", -1), CPUs: cpus}
		if size, err := h.ReadValue(index + "/size"); err == nil {
			llc.Size = parseSize(size)
		}
	}
}

// checkCacheIDs gives every cache the lowest CPU that shares it as id unless
// the kernel's ids distinguish all caches: they are missing on arm64, and
// unique within a level only, while on some machines CPUs differ in levels.
func (t Topology) checkCacheIDs() {
	first := make(map[int]string)
	unique := true
	for _, c := range t.CPUs {
		if c.LLC.CPUs == nil {
			continue
		}
		shared := c.LLC.CPUs.String()
		if was, ok := first[c.LLC.ID]; c.LLC.ID < 0 || ok && was != shared {
			unique = false
		}
		first[c.LLC.ID] = shared
	}
	for i := range t.CPUs {
		if c := &t.CPUs[i]; !unique && c.LLC.CPUs != nil {
			c.LLC.ID = c.LLC.CPUs.Numbers()[0]
		}
	}
}

// memoryNodes returns none without NUMA (Documentation/ABI/stable/sysfs-devices-node).
func (h *Host) memoryNodes() ([]Node, error) {
	const nodeDir = "/sys/devices/system/node"
	entries, err := os.ReadDir(h.Path(nodeDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var nodes []Node
	for _, e := range entries {
		number, isNode := strings.CutPrefix(e.Name(), "node")
		id, err := strconv.Atoi(number)
		if !isNode || err != nil {
			continue
		}
		n := Node{ID: id}
		if n.CPUs, err = h.readSet(path.Join(nodeDir, e.Name(), "cpulist")); err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return nodes, nil
}

func (h *Host) readSet(file string) (sample.Set, error) {
	text, err := h.ReadValue(file)
	if err != nil {
		return nil, err
	}
	return sample.ParseSet(text)
}

// readInt returns the number in a file, or otherwise.
func (h *Host) readInt(file string, otherwise int) int {
	text, err := h.ReadValue(file)
	if err != nil {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return otherwise
	}
	return n
}

// parseSize reads a cache size as sysfs writes it, "32768K"; 0 if malformed.
func parseSize(s string) int64 {
	unit := int64(1)
	if rest, ok := strings.CutSuffix(s, "K"); ok {
		s, unit = rest, 1<<10
	} else if rest, ok := strings.CutSuffix(s, "M"); ok {
		s, unit = rest, 1<<20
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return n * unit
}
