package sample

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Millis is a point in time: milliseconds since the Unix epoch.
type Millis int64

// At converts a time to Millis.
func At(t time.Time) Millis { return Millis(t.UnixMilli()) }

// Time converts m to a time.Time in UTC.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// Add returns the point d later; parts of a millisecond are dropped.
func (m Millis) Add(d time.Duration) Millis { return m + Millis(d.Milliseconds()) }

// Sub returns the duration since earlier.
func (m Millis) Sub(earlier Millis) time.Duration {
	return time.Duration(m-earlier) * time.Millisecond
}

// JobName names a job: many similar tasks.
type JobName string

// TaskName is the name of a task for people: what its runtime calls it ("shop/web-0/app"), or,
// if that is not known, its cgroup path in the identity hierarchy. Only a path begins with "/".
// It is a label, never a key: a restarted task may reuse it.
type TaskName string

// Platform is the CPU type as the key of a spec.
type Platform string

// Hierarchy says in which cgroup tree a task has its identity.
type Hierarchy uint8

const (
	// Unified is cgroup v2, also where it is mounted in addition to v1 controllers.
	Unified Hierarchy = iota
	// V1CPU is the v1 hierarchy with the cpu controller. A task has its identity there
	// only if its processes are in "/" of Unified.
	V1CPU
)

func (h Hierarchy) String() string {
	if h == V1CPU {
		return "v1cpu"
	}
	return "v2"
}

// TaskKey identifies a task for as long as the agent runs. A path that is removed and
// created again has another inode or another FirstSeen, so it is another task.
type TaskKey struct {
	Hierarchy Hierarchy
	Inode     uint64 // of the cgroup directory; the kernel's cgroup id
	FirstSeen Millis
}

func (k TaskKey) String() string {
	return fmt.Sprintf("%s:%d@%d", k.Hierarchy, k.Inode, k.FirstSeen)
}

// Compare is an arbitrary but stable order.
func (k TaskKey) Compare(o TaskKey) int {
	return cmp.Or(cmp.Compare(k.Hierarchy, o.Hierarchy), cmp.Compare(k.Inode, o.Inode), cmp.Compare(k.FirstSeen, o.FirstSeen))
}

// CgroupID is the key under which eBPF programs account for the task: the kernel's cgroup id, with the
// top bit set for the v1 cpu hierarchy, whose ids are counted separately from those of v2.
func (k TaskKey) CgroupID() uint64 { return CgroupID(k.Hierarchy, k.Inode) }

// CgroupID is TaskKey.CgroupID for a cgroup that is not (yet) a task.
func CgroupID(h Hierarchy, inode uint64) uint64 {
	if h == V1CPU {
		return inode | 1<<63
	}
	return inode
}

// Class is the service class of a job, least important first.
type Class uint8

const (
	// BestEffort work uses the CPU time that is left over.
	BestEffort Class = iota
	// Batch work has throughput to deliver, but no caller waits for one answer.
	Batch
	// LatencySensitive work serves a caller that waits.
	LatencySensitive
)

var classNames = [...]string{"best-effort", "batch", "latency-sensitive"}

func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// ParseClass is the inverse of String.
func ParseClass(s string) (Class, error) {
	if i := slices.Index(classNames[:], s); i >= 0 {
		return Class(i), nil
	}
	return 0, fmt.Errorf("class %q: want one of %s", s, strings.Join(classNames[:], ", "))
}

// MarshalText implements encoding.TextMarshaler.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Class) UnmarshalText(b []byte) (err error) {
	*c, err = ParseClass(string(b))
	return err
}

// Task is the identity of a task: its key, its name, and how it may be treated.
type Task struct {
	Key   TaskKey  `json:"-"`
	Name  TaskName `json:"task"`
	Job   JobName  `json:"job"`
	Class Class    `json:"class"`
	// Cgroup is the task's cgroup path if that is not its name; else "".
	Cgroup TaskName `json:"cgroup,omitempty"`
	// Protected allows caps on other tasks when it is a victim although it is not
	// latency-sensitive. It does not affect whether the task itself may be capped.
	Protected bool `json:"protected,omitempty"`
	// Unprotected forbids caps on others for it although it is latency-sensitive.
	Unprotected bool `json:"unprotected,omitempty"`
	// NeverCap forbids capping it, whatever its class.
	NeverCap bool `json:"never_cap,omitempty"`
	// Holds is a task in its cgroup that is spared, the first by name; "" if there is none.
	// The kernel would apply a limit of this task to that one too, so this one is not capped.
	Holds TaskName `json:"holds,omitempty"`
}

// Path is the task's cgroup path in its identity hierarchy.
func (t *Task) Path() string {
	if t.Cgroup != "" {
		return string(t.Cgroup)
	}
	return string(t.Name)
}

// Contains reports whether the other task's cgroup is below this one's.
func (t *Task) Contains(inner *Task) bool {
	o, i := t.Path(), inner.Path()
	return t.Key.Hierarchy == inner.Key.Hierarchy && len(i) > len(o) && i[len(o)] == '/' && strings.HasPrefix(i, o)
}

// MayBeHelped reports whether other tasks may be capped for it when it is a victim.
func (t *Task) MayBeHelped() bool {
	return !t.Unprotected && (t.Class == LatencySensitive || t.Protected)
}

// MayBeCapped reports whether it may be capped for another task.
func (t *Task) MayBeCapped() bool { return t.Class != LatencySensitive && !t.NeverCap && t.Holds == "" }

// Spared reports whether no limit of a cgroup around it may apply to it: it is
// latency-sensitive, protected or never-cap.
func (t *Task) Spared() bool { return t.Class == LatencySensitive || t.Protected || t.NeverCap }
