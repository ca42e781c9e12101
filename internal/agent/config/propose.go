package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/origin"
)

// Niceness from which on a task asks for little: of "nice" without a number, and above 0.
const (
	niceLeft  = 10
	niceBatch = 1
)

// propose sets the class from what is known of the task. The first of these that applies decides:
// what its owner wrote; what the cluster's administrator gave it; that it asks to be served last;
// that it is a virtual machine; that it asks for CPU time of its own, or accepts connections. If
// nothing applies, the rule's class stays.
func (v *Verdict) propose(path string, f *origin.Facts, annotations bool) {
	v.Proposed = true
	set := func(c sample.Class, why string, args ...any) { v.Class, v.Why = c, fmt.Sprintf(why, args...) }
	p := &f.Process
	// What nodes need, by whichever priority class. A pod without a name may be one of these.
	v.NeverCap = v.NeverCap || f.Labels["namespace"] == "kube-system" || f.Runtime == origin.Kubernetes && f.Name == ""
	if own, err := sample.ParseClass(f.Annotations[origin.Annotation+"class"]); annotations && err == nil {
		set(own, "annotation %sclass", origin.Annotation)
		v.protect(f)
		return
	}
	switch {
	case strings.HasPrefix(f.PriorityClass, "system-"):
		set(sample.LatencySensitive, "priority class %s", f.PriorityClass)
		v.NeverCap = true
	case f.Priority < 0:
		set(sample.BestEffort, "priority %d", f.Priority)
	case f.QoS == origin.BestEffort:
		set(sample.BestEffort, "QoS class %s", f.QoS)
	case p.Read && p.Policy == origin.SchedIdle:
		set(sample.BestEffort, "scheduling policy %s", p.Policy)
	case p.Read && p.Nice >= niceLeft:
		set(sample.BestEffort, "niceness %d", p.Nice)
	case strings.Contains(path, "/background.slice/"):
		set(sample.BestEffort, "in background.slice")
	case f.Finite:
		set(sample.Batch, "pod of a Job")
	case p.Read && p.Policy == origin.SchedBatch:
		set(sample.Batch, "scheduling policy %s", p.Policy)
	case p.Read && p.Nice >= niceBatch:
		set(sample.Batch, "niceness %d", p.Nice)
	case f.Runtime == origin.Libvirt || f.Runtime == origin.QEMU || p.Guest != "":
		// What runs in it is not visible: it may be helped and may be capped.
		set(sample.Batch, "virtual machine")
		v.Protected = true
	case f.QoS == origin.Guaranteed:
		set(sample.LatencySensitive, "QoS class %s", f.QoS)
	case len(p.Listens) > 0:
		set(sample.LatencySensitive, "accepts connections at TCP port %s", ports(p.Listens))
	case p.Unread != "":
		v.Why = "nothing speaks for another class (" + p.Unread + ")"
	default:
		v.Why = "nothing speaks for another class"
	}
	if annotations {
		v.protect(f)
	}
}

// protect applies the annotation that lets others be capped for the task.
func (v *Verdict) protect(f *origin.Facts) {
	if on, err := strconv.ParseBool(f.Annotations[origin.Annotation+"protect"]); err == nil {
		v.Protected = on
	}
}

// ports lists the first ports.
func ports(all []int) string {
	const most = 3
	var text []string
	for _, p := range all[:min(len(all), most)] {
		text = append(text, strconv.Itoa(p))
	}
	if len(all) > most {
		text = append(text, "…")
	}
	return strings.Join(text, ", ")
}
