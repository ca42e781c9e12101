package notify

// PodOf returns the pod that a task is of by its name, safe as a part of a URL; false if the name
// is not one of Kubernetes.
func PodOf(task string) (namespace, name string, ok bool) {
	p := podOf(task)
	return p.namespace, p.name, p.name != ""
}
