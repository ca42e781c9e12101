package origin

import (
	"strings"
	"testing"
)

const (
	someID  = "4b1c0e6f2a7d3958e1f0a9b8c7d6e5f40123456789abcdef0123456789abcdef"
	somePod = "11111111-2222-3333-4444-555555555555"
)

// The workload of a pod is what made it, by the labels of its controllers or by the kubelet.
func TestWorkload(t *testing.T) {
	type labels = map[string]string
	for _, c := range []struct {
		what, pod string
		labels    labels
		owner     string
		want      string
		finite    bool
	}{
		{what: "Deployment", pod: "web-5d8f7c9b6d-x7k2p", labels: labels{"pod-template-hash": "5d8f7c9b6d"}, want: "web"},
		{what: "Deployment with dashes", pod: "web-front-5d8f7c9b6d-x7k2p", labels: labels{"pod-template-hash": "5d8f7c9b6d"}, want: "web-front"},
		{what: "Deployment with a name of which the hash is cut", pod: "prometheus-kube-prometheus-stack-kube-state-metrics-5d8f7cx7k2p", labels: labels{"pod-template-hash": "5d8f7c9b6d"},
			want: "prometheus-kube-prometheus-stack-kube-state-metrics"},
		{what: "Deployment with a name that is cut", pod: strings.Repeat("n", 58) + "x7k2p", labels: labels{"pod-template-hash": "5d8f7c9b6d"}, want: strings.Repeat("n", 58)},
		{what: "Rollout", pod: "web-7d8f9c6b5-x7k2p", labels: labels{"rollouts-pod-template-hash": "7d8f9c6b5"}, want: "web"},
		{what: "a label that the pod's author wrote", pod: "web-1", labels: labels{"pod-template-hash": "5d8f7c9b6d"}, want: "web-1"},
		{what: "StatefulSet", pod: "db-12", labels: labels{"statefulset.kubernetes.io/pod-name": "db-12", "controller-revision-hash": "db-6d"}, want: "db"},
		{what: "DaemonSet", pod: "log-agent-b8x2z", labels: labels{"controller-revision-hash": "7c9"}, want: "log-agent"},
		{what: "Job", pod: "load-abcde", labels: labels{"batch.kubernetes.io/job-name": "load", "job-name": "load"}, want: "load", finite: true},
		{what: "Job before Kubernetes 1.27", pod: "load-abcde", labels: labels{"job-name": "load"}, want: "load", finite: true},
		{what: "CronJob", pod: "report-29384756-abcde", labels: labels{"job-name": "report-29384756"}, want: "report", finite: true},
		{what: "pod alone", pod: "debug-1", want: "debug-1"},
		{what: "owner that the kubelet names", pod: "x-12345", owner: "training", want: "training"},
	} {
		r := &record{namespace: "shop", pod: c.pod, container: "app", labels: c.labels, owner: c.owner}
		f := facts(Origin{Runtime: Kubernetes, ID: someID, Pod: somePod, UID: -1}, r, Process{})
		if f.Job != "shop/"+c.want+"/app" || f.Name != "shop/"+c.pod+"/app" || f.Finite != c.finite || f.Labels["workload"] != c.want {
			t.Errorf("%s: %+v", c.what, f)
		}
	}
}

// Names of everything that is not a pod.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		path      string
		record    *record
		process   Process
		name, job string
		claimed   bool
	}{
		{path: "/docker/" + someID, record: &record{name: "web"}, name: "docker/web", job: "docker/web"},
		{path: "/docker/" + someID, record: &record{name: "shop-web-2", labels: map[string]string{"com.docker.compose.project": "shop", "com.docker.compose.service": "web"}},
			name: "docker/shop-web-2", job: "docker/shop-web"},
		{path: "/docker/" + someID, record: &record{name: "web.2.k3j", labels: map[string]string{"com.docker.swarm.service.name": "web"}}, name: "docker/web.2.k3j", job: "docker/web"},
		{path: "/docker/" + someID, job: "docker/" + someID[:12]}, // nothing knows it
		{path: "/machine.slice/libpod-" + someID + ".scope", record: &record{name: "db"}, name: "podman/db", job: "podman/db"},
		{path: "/machine.slice/libpod-conmon-" + someID + ".scope"},
		{path: "/kubepods/burstable/pod" + somePod + "/" + someID, job: "kubernetes/" + somePod}, // never the container's id
		{path: "/default/web", name: "containerd/default.web", job: "containerd/default.web"},
		{path: "/lxc.payload.c1", name: "lxc/c1", job: "lxc/c1"},
		{path: "/machine.slice/machine-box.scope", name: "machined/box", job: "machined/box"},
		{path: `/machine.slice/machine-qemu\x2d7\x2dweb.scope`, name: "vm/web", job: "vm/web"},
		{path: `/machine.slice/machine-qemu\x2d7\x2dweb.scope`, process: Process{Guest: "web server", VCPUs: 4}, name: "vm/web server", job: "vm/web server"},
		{path: `/machine.slice/machine-qemu\x2d7\x2dweb.scope`, process: Process{Guest: "other"}, name: "vm/other", job: "vm/other", claimed: true},
		{path: "/qemu.slice/101.scope", process: Process{Guest: "db"}, name: "vm/db", job: "vm/db", claimed: true},
		{path: "/vms/first", process: Process{Guest: "db"}, name: "vm/db", job: "vm/db", claimed: true},
		{path: "/vms/first"},
		{path: "/system.slice/nginx.service", name: "nginx.service", job: "nginx.service"},
		{path: "/system.slice/system-web.slice/web@1.service", name: "web@1.service", job: "web@.service"},
		{path: "/system.slice/run-r0123abc.scope", name: "run-r0123abc.scope", job: "run.scope"},
		{path: "/system.slice/run-tests.service", name: "run-tests.service", job: "run-tests.service"},
		{path: "/user.slice/user-1000.slice/session-3.scope", name: "user-1000/session-3.scope", job: "user-1000/session.scope"},
		{path: "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-org.gnome.Maps-2231.scope", name: "user-1000/app-gnome-org.gnome.Maps-2231.scope", job: "user-1000/app-gnome-org.gnome.Maps.scope"},
		{path: "/user.slice/user-1000.slice/user@1000.service/app.slice/snap.code.code-0f1a2b3c-4d5e-6f70-8192-a3b4c5d6e7f8.scope", name: "user-1000/snap.code.code-0f1a2b3c-4d5e-6f70-8192-a3b4c5d6e7f8.scope", job: "user-1000/snap.code.code.scope"},
		{path: "/user.slice/user-1000.slice/user@1000.service/app.slice/app-web-workers.scope", name: "user-1000/app-web-workers.scope", job: "user-1000/app-web-workers.scope"},
		{path: "/batch.slice/app-web-2.scope", name: "app-web-2.scope", job: "app-web-2.scope"},
		{path: "/user.slice/user-1000.slice/user@1000.service/app.slice/my-app.scope", name: "user-1000/my-app.scope", job: "user-1000/my-app.scope"},
		{path: "/user.slice/user-1000.slice/user@1000.service/app.slice/a.service", name: "user-1000/a.service", job: "user-1000/a.service"},
		{path: "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + someID + ".scope", record: &record{name: "db"}, name: "user-1000/podman/db", job: "user-1000/podman/db"},
		{path: "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-conmon-" + someID + ".scope", name: "user-1000/libpod-conmon-" + someID + ".scope", job: "user-1000/libpod-conmon.scope"},
	} {
		f := facts(Parse(c.path), c.record, c.process)
		if f.Name != c.name || f.Job != c.job || f.Claimed != c.claimed {
			t.Errorf("%s: %q, %q, claimed %v", c.path, f.Name, f.Job, f.Claimed)
		}
	}
	odd := facts(Origin{Runtime: QEMU, UID: -1}, nil, Process{Guest: "\xff" + strings.Repeat("ü", 2000)})
	if len(odd.Name) > longestName || !strings.HasPrefix(odd.Name, "vm/\uFFFDü") {
		t.Errorf("%d bytes: %.20q", len(odd.Name), odd.Name)
	}
}
