package origin

import (
	"cmp"
	"maps"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Facts are what is known of a cgroup.
type Facts struct {
	Origin
	// Name is what people call the task, "shop/web-5d8f7c9b6d-abcde/app"; "" if that is not
	// known. It does not begin with "/".
	Name string
	// Job is what it is an instance of, "shop/web/app"; "" if that is not known.
	Job string
	// Claimed: the name is from the arguments of a process.
	Claimed bool
	// Sandbox: it holds a pod's namespaces and runs nothing.
	Sandbox bool
	// Finite: the pod is one of a Job, and ends.
	Finite bool
	// Labels are for people: namespace, pod, workload, container, image, unit, vm, vcpus.
	Labels map[string]string
	// Annotations are the pod's, or the container's labels, whose names begin with "quell.io/".
	Annotations map[string]string
	// Priority is the name and the value of a pod's priority class; "" if that is not known.
	PriorityClass string
	Priority      int
	Process       Process
}

// record is what a runtime says of one container.
type record struct {
	sandbox                   bool
	namespace, pod, container string // Kubernetes
	name                      string // other runtimes
	image                     string
	attempt                   uint64
	labels, annotations       map[string]string // of the pod; of the container for other runtimes
	owner                     string            // of the pod, "Deployment/web"
	priorityClass             string
	priority                  int
}

// Annotation is what the names of quell's annotations begin with.
const Annotation = "quell.io/"

// facts joins what the path, the runtime (nil: it does not know the container) and the processes
// tell.
func facts(o Origin, r *record, p Process) Facts {
	f := Facts{Origin: o, Process: p, Labels: map[string]string{"runtime": string(o.Runtime)}}
	if o.QoS != "" {
		f.Labels["qos"] = string(o.QoS)
	}
	switch {
	case r != nil && r.sandbox:
		f.Sandbox = true
	case r != nil && r.pod != "":
		f.ofPod(r)
	case o.Runtime == Kubernetes:
		f.Job = "kubernetes/" + o.Pod // of a container, but never its id
	case r != nil:
		f.ofContainer(r)
	case o.ID != "":
		f.Job = string(o.Runtime) + "/" + o.ID[:12]
	case o.Runtime == Libvirt, o.Runtime == QEMU:
		f.ofMachine(o.Local)
	case o.Runtime == Containerd:
		f.Name = "containerd/" + o.Space + "." + o.Local
		f.Job = f.Name
	case o.Runtime == Systemd:
		f.ofUnit()
		f.Labels["vm"] = p.Guest
	case o.Known():
		f.Name = string(o.Runtime) + "/" + o.Local
		f.Job = f.Name
	case p.Guest != "":
		f.ofMachine(p.Guest)
		f.Claimed = true
	}
	if o.UID >= 0 {
		f.ofUser()
	}
	if o.Helper {
		f.Name, f.Job = "", ""
	}
	f.Name, f.Job = clean(f.Name), clean(f.Job)
	maps.DeleteFunc(f.Labels, func(_, v string) bool { return v == "" })
	return f
}

func (f *Facts) ofPod(r *record) {
	workload := r.workload()
	f.Name = r.namespace + "/" + r.pod + "/" + r.container
	f.Job = r.namespace + "/" + workload + "/" + r.container
	f.annotate(r.annotations)
	f.PriorityClass, f.Priority, f.Finite = r.priorityClass, r.priority, r.job() != ""
	f.Labels["namespace"], f.Labels["pod"], f.Labels["workload"] = r.namespace, r.pod, workload
	f.Labels["container"], f.Labels["image"], f.Labels["priority"] = r.container, r.image, r.priorityClass
	if r.attempt > 0 {
		f.Labels["restart"] = strconv.FormatUint(r.attempt, 10)
	}
}

func (f *Facts) ofContainer(r *record) {
	prefix := string(f.Runtime) + "/"
	f.Name, f.Job = prefix+r.name, prefix+r.name
	f.Labels["container"], f.Labels["image"] = r.name, r.image
	f.annotate(r.labels)
	// Docker Compose and Swarm name the service of which a container is one instance.
	project, service := r.labels["com.docker.compose.project"], r.labels["com.docker.compose.service"]
	switch swarm := r.labels["com.docker.swarm.service.name"]; {
	case swarm != "":
		f.Job, f.Labels["workload"] = prefix+swarm, swarm
	case project != "" && service != "":
		f.Job, f.Labels["workload"] = prefix+project+"-"+service, project+"-"+service
	}
}

// ofMachine: the name in QEMU's arguments is the whole one, where the path has it cut.
func (f *Facts) ofMachine(local string) {
	if guest := f.Process.Guest; guest != "" {
		f.Claimed = f.Claimed || squeeze(guest) != "" && !strings.HasPrefix(squeeze(guest), squeeze(local))
		local = guest
	}
	f.Name, f.Job = "vm/"+local, "vm/"+local
	f.Labels["vm"] = local
	if f.Process.VCPUs > 0 {
		f.Labels["vcpus"] = strconv.Itoa(f.Process.VCPUs)
	}
}

// squeeze is what libvirt leaves of a name in a path: letters, digits, and single dashes and dots.
func squeeze(s string) string {
	return strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z') {
			return r
		}
		return -1
	}, s)
}

// ofUnit: instances of a template are one job, as are the runs of systemd-run, the sessions and conmons
// of a user, and the starts of an application from a desktop ("app-LAUNCHER-ID-RANDOM.scope", where RANDOM is a
// number, and "snap.ID-UUID.scope").
func (f *Facts) ofUnit() {
	unit := f.Local
	f.Name, f.Job, f.Labels["unit"] = unit, unit, unit
	end := path.Ext(unit)
	name := strings.TrimSuffix(unit, end)
	switch front, _, instance := strings.Cut(name, "@"); {
	case instance && front != "":
		f.Job = front + "@" + end
	case strings.HasPrefix(name, "session-"):
		f.Job = "session" + end
	case strings.HasPrefix(name, "libpod-conmon-"):
		f.Job = "libpod-conmon" + end
	case strings.HasPrefix(name, "run-") && isHex(strings.TrimLeft(name[len("run-"):], "rup")):
		f.Job = "run" + end
	case f.inUserSlice() && end == ".scope" && strings.Count(name, "-") > 1 && strings.HasPrefix(name, "app-") && isHex(name[strings.LastIndexByte(name, '-')+1:]):
		f.Job = name[:strings.LastIndexByte(name, '-')] + end
	case end == ".scope":
		f.Job = uuid.ReplaceAllString(name, "") + end
	}
}

var uuid = regexp.MustCompile(`-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// ofUser makes the names those of a user's: two users, and the system, may call different things the
// same, and samples of one must not teach what another's job costs.
func (f *Facts) ofUser() {
	user := strconv.Itoa(f.UID)
	f.Labels["user"] = user
	for _, name := range [...]*string{&f.Name, &f.Job} {
		if *name != "" {
			*name = "user-" + user + "/" + *name
		}
	}
}

func (f *Facts) annotate(all map[string]string) {
	for k, v := range all {
		if strings.HasPrefix(k, Annotation) {
			if f.Annotations == nil {
				f.Annotations = map[string]string{}
			}
			f.Annotations[k] = v
		}
	}
}

// workload is what made the pod: its owner if the kubelet says so, else what the labels that
// controllers set tell (kubernetes.io/docs/reference/labels-annotations-taints).
func (r *record) workload() string {
	if r.owner != "" {
		return r.owner
	}
	l, pod := r.labels, r.pod
	if job := r.job(); job != "" {
		return cronJob(job)
	}
	// A ReplicaSet's, of a Deployment. Of a long name the API server keeps 58 bytes, to which it adds 5 of its own.
	if hash := "-" + templateHash(l) + "-"; len(hash) > 2 && len(pod) > 5 {
		for n := len(hash); n == len(hash) || n >= 0 && len(pod) == 58+5; n-- {
			if name, ok := strings.CutSuffix(pod[:len(pod)-5], hash[:n]); ok {
				return name
			}
		}
	}
	if front, tail, ok := cutLast(pod, "-"); ok {
		set := l["statefulset.kubernetes.io/pod-name"] != "" || l["controller-revision-hash"] != ""
		if set && (isNumber(tail) || len(tail) == 5) { // of a StatefulSet, a DaemonSet
			return front
		}
	}
	return pod
}

// templateHash is what the name of a Deployment's ReplicaSet ends with, or of a Rollout's (Argo Rollouts).
func templateHash(labels map[string]string) string {
	return cmp.Or(labels["pod-template-hash"], labels["rollouts-pod-template-hash"])
}

// job is the Job of which the pod is one; "" if it is none.
func (r *record) job() string {
	return cmp.Or(r.labels["batch.kubernetes.io/job-name"], r.labels["job-name"])
}

// cronJob is the CronJob of a Job, whose name ends with the time in minutes; else the Job.
func cronJob(job string) string {
	if front, tail, ok := cutLast(job, "-"); ok && len(tail) >= 8 && isNumber(tail) {
		return front
	}
	return job
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// longestName bounds a name, in bytes: Kubernetes' names have at most 253 each.
const longestName = 1024

// clean makes a name one that is no path and is text.
func clean(s string) string {
	s = strings.TrimLeft(strings.ToValidUTF8(s, "\uFFFD"), `/"`)
	if len(s) > longestName {
		s = strings.ToValidUTF8(s[:longestName], "")
	}
	return s
}
