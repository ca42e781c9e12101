package notify

import (
	"regexp"
	"strings"
	"time"
)

// pod is a pod's container, as the name of a task has it: NAMESPACE/POD/CONTAINER.
type pod struct{ namespace, name, container string }

// Kubernetes' names, of namespaces and containers and of pods (RFC 1123).
var (
	label  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	domain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
)

// podOf returns the pod that a task is of; none if its name is not one of Kubernetes. The name
// comes from an agent and becomes part of a URL.
func podOf(task string) (p pod) {
	parts := strings.Split(task, "/")
	if len(parts) != 3 || !label.MatchString(parts[0]) || !domain.MatchString(parts[1]) || strings.Contains(parts[1], "..") || !label.MatchString(parts[2]) {
		return pod{}
	}
	return pod{parts[0], parts[1], parts[2]}
}

// PodOf returns namespace and name of the pod that a task is of, safe as parts of a URL; false if
// its name is not one of Kubernetes.
func PodOf(task string) (namespace, name string, ok bool) {
	p := podOf(task)
	return p.namespace, p.name, p.name != ""
}

// SamePod reports whether two tasks are containers of one pod: they are evicted together.
func SamePod(x, y string) bool {
	a, b := podOf(x), podOf(y)
	return a.name != "" && a.namespace == b.namespace && a.name == b.name
}

// object is an ObjectReference.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	FieldPath  string `json:"fieldPath"`
}

func (p *pod) object() *object {
	if p.name == "" {
		return nil
	}
	return &object{"v1", "Pod", p.namespace, p.name, "spec.containers{" + p.container + "}"}
}

// kubernetesEvent is an Event of events.k8s.io/v1.
type kubernetesEvent struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	EventTime  string            `json:"eventTime"` // microseconds
	Controller string            `json:"reportingController"`
	Instance   string            `json:"reportingInstance"`
	Action     string            `json:"action"`
	Reason     string            `json:"reason"`
	Type       string            `json:"type"`
	Note       string            `json:"note"`
	Regarding  *object           `json:"regarding"`
	Related    *object           `json:"related,omitempty"`
}

// The API's limits, in bytes.
const maxInstance, maxNote = 128, 1024

// kubernetesEvents are the requests that make an event of each victim's pod.
func kubernetesEvents(base, instance string, now time.Time, all []*Event) (ms []message) {
	for _, e := range all {
		v := &e.Victim.pod
		k := kubernetesEvent{APIVersion: "events.k8s.io/v1", Kind: "Event", Metadata: map[string]string{"generateName": "quell-", "namespace": v.namespace},
			EventTime: now.UTC().Format("2006-01-02T15:04:05.000000Z"), Controller: "quell-server", Instance: instance[:min(len(instance), maxInstance)], Action: "Detect",
			Reason: "NoisyNeighbour", Type: "Warning", Note: e.Text, Regarding: v.object(), Related: e.Suspect.pod.object()}
		if e.Event == "resolved" {
			k.Reason, k.Type = "NoisyNeighbourGone", "Normal"
		}
		if e.Advice != "" && len(k.Note)+2+len(e.Advice) <= maxNote {
			k.Note += ". " + e.Advice
		}
		k.Note = strings.ToValidUTF8(k.Note[:min(len(k.Note), maxNote)], "")
		ms = append(ms, message{strings.TrimSuffix(base, "/") + "/apis/events.k8s.io/v1/namespaces/" + v.namespace + "/events", k, 1})
	}
	return ms
}
