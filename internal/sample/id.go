package sample

import (
	"fmt"
	"strings"
	"time"
)

// Millis is a point in time: milliseconds since the Unix epoch.
type Millis int64

// At converts a time to Millis.
func At(t time.Time) Millis { return Millis(t.UnixMilli()) }

// Time converts back, in UTC.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// Add returns the point d later; parts of a millisecond are dropped.
func (m Millis) Add(d time.Duration) Millis { return m + Millis(d.Milliseconds()) }

// Sub returns the duration since earlier.
func (m Millis) Sub(earlier Millis) time.Duration {
	return time.Duration(m-earlier) * time.Millisecond
}

// JobName names a job: many similar tasks.
type JobName string

// TaskName is what people call a task: its cgroup path in the identity
// hierarchy. It is a label, never a key: a restarted task may reuse it.
type TaskName string

// Platform is the CPU type as the key of a spec.
type Platform string

// Hierarchy says in which cgroup tree a task has its identity.
type Hierarchy uint8

const (
	// Unified is cgroup v2, also where it is mounted beside v1 controllers.
	Unified Hierarchy = iota
	// V1CPU is the v1 hierarchy that carries the cpu controller; a task has
	// its identity there only if its processes are in "/" of Unified.
	V1CPU
)

func (h Hierarchy) String() string {
	if h == V1CPU {
		return "v1cpu"
	}
	return "v2"
}

// TaskKey tells tasks apart for as long as the agent lives. A path that is
// removed and made again has another inode or another FirstSeen, so it is
// another task.
type TaskKey struct {
	Hierarchy Hierarchy
	Inode     uint64 // of the cgroup directory; the kernel's cgroup id
	FirstSeen Millis
}

func (k TaskKey) String() string {
	return fmt.Sprintf("%s:%d@%d", k.Hierarchy, k.Inode, k.FirstSeen)
}

// CgroupID is the key under which eBPF programs account for the task: the
// kernel's cgroup id, with the top bit set for the v1 cpu hierarchy, whose
// ids are counted apart from those of v2.
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
	// BestEffort work runs on what is left over.
	BestEffort Class = iota
	// Batch work has throughput to deliver but nobody waits for one answer.
	Batch
	// LatencySensitive work serves somebody who waits.
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
	for i, n := range classNames {
		if s == n {
			return Class(i), nil
		}
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

// Task is who a task is: its key, what people call it and how it may be
// treated.
type Task struct {
	Key   TaskKey  `json:"-"`
	Name  TaskName `json:"task"`
	Job   JobName  `json:"job"`
	Class Class    `json:"class"`
	// Protected makes it a victim for whom others may be capped although it
	// is not latency-sensitive. It says nothing about being capped.
	Protected bool `json:"protected,omitempty"`
	// Unprotected makes it none although it is latency-sensitive.
	Unprotected bool `json:"unprotected,omitempty"`
	// NeverCap forbids capping it, whatever its class.
	NeverCap bool `json:"never_cap,omitempty"`
}

// Helped reports whether others may be capped for it where it is a victim.
func (t *Task) Helped() bool {
	return !t.Unprotected && (t.Class == LatencySensitive || t.Protected)
}
