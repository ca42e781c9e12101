//go:build helm

package chart

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// machine is a node of Kubernetes: this machine, with a kubelet and containerd of its own.
type machine struct {
	*cluster
	unified bool     // cgroup v2 alone, with systemd's driver; else v1 with the driver cgroupfs
	path    []string // of the environment: containerd's programs and their libraries
	runtime string   // its socket
}

func startNode(t *testing.T) *machine {
	t.Helper()
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	packages := filepath.Join(home, ".cache/quell/runtimes")
	if out, err := exec.Command("../quelltest/runtimes.sh", packages).CombinedOutput(); err != nil {
		t.Fatalf("unpack runtimes: %v: %s", err, out)
	}
	dir, err := os.MkdirTemp("/tmp", "qkn") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	keepAbsent(t, "/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/usr/libexec/kubernetes", "/run/containerd", "/run/quell")
	t.Cleanup(func() { unmount(dir) })
	t.Cleanup(removeCgroups)
	root := packages + "/root"
	_, err = os.Stat("/sys/fs/cgroup/cgroup.controllers")
	n := &machine{cluster: startCluster(t, dir), unified: err == nil, runtime: dir + "/run/c.sock", path: append(os.Environ(),
		"PATH="+root+"/usr/bin:"+root+"/usr/sbin:"+os.Getenv("PATH"), "LD_LIBRARY_PATH="+root+"/usr/lib/x86_64-linux-gnu:"+root+"/lib/x86_64-linux-gnu")}
	n.containerd(root)
	n.kubelet()
	return n
}

// keepAbsent removes at the test's end what these programs make outside their directory, unless
// it was there before.
func keepAbsent(t *testing.T, dirs ...string) {
	for _, dir := range dirs {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			t.Cleanup(func() { os.RemoveAll(dir) })
		}
	}
}

// unmount undoes the mounts below a directory, the newest first.
func unmount(dir string) {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(text), "\n")
	for _, line := range slices.Backward(lines) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			_ = unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
}

// removeCgroups removes what the kubelet and its pods leave, if nothing is in it.
func removeCgroups() {
	for _, pattern := range []string{"kubepods/*/pod*/*", "kubepods/pod*/*", "kubepods/*/pod*", "kubepods/pod*", "kubepods/*", "kubepods", "k8s.io/*", "k8s.io"} {
		all, _ := filepath.Glob("/sys/fs/cgroup/*/" + pattern)
		for _, dir := range all {
			_ = os.Remove(dir) // rmdir
		}
	}
}

// run runs one of containerd's programs.
func (n *machine) run(name string, args ...string) string {
	n.t.Helper()
	var out, said bytes.Buffer
	cmd := n.command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		n.t.Fatalf("%s %q: %v: %s", name, args, err, said.String())
	}
	return strings.TrimSpace(out.String())
}

func (n *machine) command(name string, args ...string) *exec.Cmd {
	// exec.Command finds programs by this process's PATH.
	cmd := exec.Command("/usr/bin/env", append([]string{name}, args...)...)
	cmd.Env, cmd.Dir = n.path, n.dir
	return cmd
}

func (n *machine) ctr(args ...string) string {
	n.t.Helper()
	return n.run("ctr", append([]string{"-a", n.runtime, "-n", "k8s.io"}, args...)...)
}

// containerd starts the runtime, with a network for pods and all images.
func (n *machine) containerd(root string) {
	n.t.Helper()
	for _, sub := range []string{"cni", "run", "root/task"} {
		if err := os.MkdirAll(filepath.Join(n.dir, sub), 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	n.write("cni/net.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "test", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "198.18.77.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`, n.dir+"/ipam"))
	config := n.write("containerd.toml", fmt.Sprintf(`version = 2
root = %q
state = %q
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/task:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = %t
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
[plugins."io.containerd.internal.v1.opt"]
  path = %q
`, n.dir+"/cr", n.dir+"/cs", n.runtime, n.unified, root+"/usr/lib/cni", n.dir+"/cni", n.dir+"/opt"))
	p := daemon(n.t, n.dir, "containerd", n.command("containerd", "--config", config))
	err := p.Until(n.t.Context(), time.Minute, "make its socket", func() (bool, error) {
		_, err := os.Stat(n.runtime)
		return err == nil, nil
	})
	if err != nil {
		n.t.Fatalf("%v: %s", err, p.Tail())
	}
	for _, file := range []string{n.task(), os.Getenv("QUELL_IMAGES") + "/quell-agent.tar", os.Getenv("QUELL_IMAGES") + "/quell-server.tar"} {
		n.ctr("images", "import", "--snapshotter", "native", file)
	}
}

// task makes the image of every container but quell's, unless QUELL_TASK_IMAGE is one (make test-node).
func (n *machine) task() (image string) {
	n.t.Helper()
	if image := os.Getenv("QUELL_TASK_IMAGE"); image != "" {
		return image
	}
	source, err := filepath.Abs("testdata/task.c")
	if err != nil {
		n.t.Fatal(err)
	}
	n.run("gcc", "-O1", "-static", "-o", n.dir+"/root/task/task", source)
	if out, err := exec.Command(os.Getenv("QUELL_IMAGE_TOOL"), "-out", n.dir+"/task.tar", "-name", "localhost/task:1", "-user", "0:0", "-entrypoint", "/task", "amd64="+n.dir+"/root/task").CombinedOutput(); err != nil {
		n.t.Fatalf("make image of the task: %v: %s", err, out)
	}
	return n.dir + "/task.tar"
}

// address is this machine's address in its network.
func address(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			return ip.IP.String()
		}
	}
	t.Fatal("this machine has no address but loopback")
	return ""
}

// tunables are what a kubelet sets in the kernel.
var tunables = []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}

// keepTunables restores at the test's end what the kubelet sets.
func keepTunables(t *testing.T) {
	for _, name := range tunables {
		file := "/proc/sys/" + name
		if old, err := os.ReadFile(file); err == nil {
			t.Cleanup(func() {
				if err := os.WriteFile(file, old, 0); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func (n *machine) kubelet() {
	n.t.Helper()
	keepTunables(n.t)
	_, port, err := net.SplitHostPort(quelltest.FreeAddress(n.t))
	if err != nil {
		n.t.Fatal(err)
	}
	cert, key := certificate(n.t, node, net.ParseIP(address(n.t)))
	driver := "cgroupfs"
	if n.unified {
		driver = "systemd"
	}
	config := n.write("kubelet.yaml", fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
port: 10250
healthzPort: %s
tlsCertFile: %s
tlsPrivateKeyFile: %s
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}}
authorization: {mode: Webhook}
cgroupDriver: %s
failSwapOn: false
makeIPTablesUtilChains: false
containerRuntimeEndpoint: unix://%s
podLogsDir: %s/logs
evictionHard: {memory.available: 1Mi}
syncFrequency: 10s
fileCheckFrequency: 10s
nodeStatusUpdateFrequency: 2s
shutdownGracePeriod: 0s
`, port, n.write("kubelet.crt", cert), n.write("kubelet.key", key), driver, n.runtime, n.dir))
	p := daemon(n.t, n.dir, "kubelet", n.command("kubelet", "--config", config, "--kubeconfig", n.kubeconfig("node", node+"-token"), "--hostname-override", node,
		"--node-ip", address(n.t), "--root-dir", n.dir+"/kubelet", "--cert-dir", n.dir+"/pki"))
	err = p.Until(n.t.Context(), 3*time.Minute, "register its node", func() (bool, error) {
		out, err := n.try("", "get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		return err == nil && out == "True", nil
	})
	if err != nil {
		n.t.Fatalf("%v: %s", err, p.Tail())
	}
}

// start makes a pod on this node, and waits until it is ready.
func (n *machine) start(text string) {
	n.t.Helper()
	name := n.kubectl(text, "create", "-f", "-", "-o", "jsonpath={.metadata.namespace} {.metadata.name}")
	namespace, name, _ := strings.Cut(name, " ")
	n.t.Cleanup(func() { // before the kubelet ends
		_, _ = n.try("", "-n", namespace, "patch", "pod", name, "--type", "merge", "-p", `{"metadata":{"finalizers":null}}`)
		_, _ = n.try("", "-n", namespace, "delete", "pod", name, "--ignore-not-found", "--timeout", "60s")
	})
	if out, err := n.try("", "-n", namespace, "wait", "--for=condition=Ready", "pod/"+name, "--timeout", "120s"); err != nil {
		said, _ := n.try("", "-n", namespace, "get", "pod", name, "-o", "jsonpath={.status}")
		events, _ := n.try("", "-n", namespace, "get", "events")
		logs, _ := filepath.Glob(n.dir + "/logs/" + namespace + "_" + name + "_*/*/*.log")
		for _, file := range logs {
			text, _ := os.ReadFile(file)
			n.t.Logf("%s: %s", file, text)
		}
		n.t.Fatalf("%s: %s %v\n%s\n%s", name, out, err, said, events)
	}
}

// container is the identifier of a pod's container.
func (n *machine) container(namespace, pod string) string {
	n.t.Helper()
	_, id, _ := strings.Cut(n.kubectl("", "-n", namespace, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].containerID}"), "://")
	return id
}

// quota reads the limit of a pod's container, in µs of a period of 100 ms.
func (n *machine) quota(namespace, pod string) (read func() string) {
	n.t.Helper()
	pattern := "/sys/fs/cgroup/cpu/kubepods/burstable/pod*/" + n.container(namespace, pod) + "/cpu.cfs_quota_us"
	if n.unified {
		pattern = "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod*.slice/cri-containerd-" + n.container(namespace, pod) + ".scope/cpu.max"
	}
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) != 1 {
		n.t.Fatalf("%s: %q, %v", pattern, files, err)
	}
	return func() string {
		text, err := os.ReadFile(files[0])
		if err != nil {
			return err.Error()
		}
		return strings.TrimSuffix(strings.TrimSpace(string(text)), " 100000")
	}
}

// apply makes some of the chart's objects.
func (n *machine) apply(all map[string]object, names ...string) {
	n.t.Helper()
	for _, name := range names {
		text, err := json.Marshal(all[name])
		if err != nil {
			n.t.Fatal(err)
		}
		n.kubectl(string(text), "apply", "-f", "-")
	}
}

// critical is a pod of which only the kubelet tells why it is never capped.
const critical = `{apiVersion: v1, kind: Pod, metadata: {name: critical-0, namespace: shop},
spec: {nodeName: ` + node + `, priorityClassName: system-cluster-critical, containers: [{name: app, image: "localhost/task:1"}]}}`

const web = `{apiVersion: v1, kind: Pod, metadata: {name: web-0, namespace: shop, annotations: {quell.io/class: batch}},
spec: {nodeName: ` + node + `, containers: [{name: app, image: "localhost/task:1", resources: {limits: {cpu: 500m, memory: 64Mi}, requests: {cpu: 100m, memory: 16Mi}}}]}}`

// TestOnANode: a kubelet runs the server and the agent as the chart says, from the images. The agent
// has the capabilities that the chart lists and no others, names the pods, caps one, leaves the limits
// alone that the kubelet then sets, once by an operator and once by VPA, and undoes its caps when it is killed and when its pod is deleted.
func TestOnANode(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	n := startNode(t)
	n.namespace("quell", "privileged")
	n.namespace("shop", "baseline")
	n.kubectl("", "-n", "shop", "create", "serviceaccount", "default")
	n.kubectl("", "-n", "shop", "patch", "serviceaccount", "default", "-p", `{"automountServiceAccountToken": false}`)
	cert, key := certificate(t, "quell-server.quell.svc")
	ca, err := json.Marshal(cert)
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, rendered(t, "testdata/node.yaml", fmt.Sprintf("image.tag=%q", os.Getenv("QUELL_IMAGE_TAG")), fmt.Sprintf("agent.stateDir=%q", n.dir+"/state"),
		fmt.Sprintf("agent.runtimeDirs=[%q]", n.dir+"/run"), fmt.Sprintf("agent.config.names.cri=[%q]", n.runtime),
		"agent.kubelet.enabled=true", fmt.Sprintf("agent.kubelet.ca=%q", n.dir+"/kubelet.crt"), "agent.server.ca="+string(ca)))
	server := n.server(all, cert, key)
	n.apply(all, "ServiceAccount/quell-agent", "ConfigMap/quell-agent", "ClusterRole/quell-agent", "ClusterRoleBinding/quell-agent")
	// A controller makes it in each namespace; it is a part of the volume with the token.
	n.kubectl("", "-n", "quell", "create", "configmap", "kube-root-ca.crt", "--from-literal", "ca.crt=")
	n.start(web)
	n.start(critical)
	n.start(pod(all["DaemonSet/quell-agent"], "quell-agent-x", "quell", func(spec object) {
		spec["nodeName"] = node
		spec["hostAliases"] = []any{object{"ip": server, "hostnames": []any{"quell-server.quell.svc"}}} // there is no DNS here
	}))
	client := api.NewClient("/run/quell/agent.sock")
	status, err := client.Status(t.Context())
	if err != nil || status.Machine != node || status.Mode != plan.Advise {
		t.Fatalf("%+v, %v", status, err)
	}
	quelltest.Until(t, "the agent says that it has no credentials", func() bool {
		s, err := client.Status(t.Context())
		return err == nil && strings.Contains(fmt.Sprint(s.Degraded), "agent.creds")
	})
	privileges(t, status.PID)
	n.enrol(client)
	for _, s := range status.Signals {
		if !s.OK {
			t.Errorf("signal %s: %s", s.Signal, s.Reason)
		}
	}
	named := n.names(client)
	n.coexists(client, named)
	if os.Getenv("QUELL_AUTOSCALER") != "" { // it takes long in a guest, and sees no cgroups
		n.autoscaled(client, named)
	}
	peak := "/sys/fs/cgroup/memory/kubepods/burstable/pod*/" + n.container("quell", "quell-agent-x") + "/memory.max_usage_in_bytes"
	if n.unified {
		peak = "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod*.slice/cri-containerd-" + n.container("quell", "quell-agent-x") + ".scope/memory.peak"
	}
	if usage, err := filepath.Glob(peak); err == nil && len(usage) == 1 {
		text, _ := os.ReadFile(usage[0])
		t.Logf("usage: %s; the agent's memory, with its maps in the kernel: %s bytes at most", status.Usage, bytes.TrimSpace(text))
	}
	n.ends(client, named)
}

// enrol gives the agent credentials that are valid for an hour: it connects, and replaces them.
func (n *machine) enrol(client *api.Client) {
	n.t.Helper()
	text := n.ctr("tasks", "exec", "--exec-id", "enrol", n.container("quell", "quell-server-0"), "/usr/bin/quell-server", "--config", "/etc/quell/server.yaml",
		"credentials", "agent", node, "--enrol", "1h", "--ttl", "2160h")
	file := n.write("state/agent.creds", text+"\n")
	quelltest.Until(n.t, "the agent is connected", func() bool {
		s, err := client.Status(n.t.Context())
		return err == nil && len(s.Degraded) == 0
	})
	quelltest.Until(n.t, "the agent has credentials of its own", func() bool {
		now, err := os.ReadFile(file)
		return err == nil && strings.TrimSpace(string(now)) != text
	})
}

// names waits until pods have their names, and returns that of a pod's container.
func (n *machine) names(client *api.Client) string {
	n.t.Helper()
	const named = "shop/web-0/app"
	quelltest.Until(n.t, "the image's quell names the pod", func() bool {
		cmd := n.command("ctr", "-a", n.runtime, "-n", "k8s.io", "tasks", "exec", "--exec-id", fmt.Sprint(time.Now().UnixNano()), n.container("quell", "quell-agent-x"), "/usr/bin/quell", "top", "--once", "--json")
		out, err := cmd.Output()
		return err == nil && bytes.Contains(out, []byte(`"`+named+`"`))
	})
	quelltest.Until(n.t, "the kubelet tells the priority class", func() bool {
		all, err := client.Tasks(n.t.Context())
		return err == nil && slices.ContainsFunc(all, func(v api.TaskView) bool {
			return v.Name == "shop/critical-0/app" && v.NeverCap && strings.Contains(v.ClassWhy, "system-cluster-critical")
		})
	})
	return named
}

// capIt caps the pod's container to a tenth of a CPU.
func (n *machine) capIt(client *api.Client, named string) {
	n.t.Helper()
	quota := n.quota("shop", "web-0")
	quelltest.Until(n.t, "the task is capped", func() bool {
		_, err := client.Command(n.t.Context(), command.CapTask(named, 0.1, time.Hour, "test"))
		return err == nil && quota() == "10000"
	})
}

// coexists: the kubelet resizes the container in mid-cap. Its limit stays, and the cap is over.
func (n *machine) coexists(client *api.Client, named string) {
	n.t.Helper()
	quota := n.quota("shop", "web-0")
	if got := quota(); got != "50000" {
		n.t.Fatalf("the kubelet's limit is %s", got)
	}
	n.capIt(client, named)
	n.kubectl("", "-n", "shop", "patch", "pod", "web-0", "--subresource", "resize", "-p", `{"spec":{"containers":[{"name":"app","resources":{"limits":{"cpu":"300m"}}}]}}`)
	n.overruled(client, named, "30000")
}

// ends: an agent that is killed, or whose pod is deleted, leaves no cap.
func (n *machine) ends(client *api.Client, named string) {
	n.t.Helper()
	quota := n.quota("shop", "web-0")
	limit := quota()
	n.capIt(client, named)
	status, err := client.Status(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	if err := unix.Kill(status.PID, unix.SIGKILL); err != nil {
		n.t.Fatal(err)
	}
	quelltest.Until(n.t, "the agent that the kubelet starts undoes the cap", func() bool { return quota() == limit })
	quelltest.Until(n.t, "it answers", func() bool {
		s, err := client.Status(n.t.Context())
		return err == nil && s.PID != status.PID && s.Intervals > 0
	})
	n.capIt(client, named)
	n.kubectl("", "-n", "quell", "patch", "pod", "quell-agent-x", "--type", "merge", "-p", `{"metadata":{"finalizers":["quell.dev/test"]}}`) // keeps its status
	n.kubectl("", "-n", "quell", "delete", "pod", "quell-agent-x", "--wait=false")
	quelltest.Until(n.t, "the agent has ended in order", func() bool {
		out, err := n.try("", "-n", "quell", "get", "pod", "quell-agent-x", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}")
		return err == nil && out == "0"
	})
	if got := quota(); got != limit {
		n.t.Errorf("after the agent's end the limit is %s", got)
	}
}

// privileges: the process has the capabilities of the chart and no others, in every set that
// gives it some.
func privileges(t *testing.T, pid int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	// Bits of linux/capability.h: DAC_READ_SEARCH 2, SYS_PTRACE 19, PERFMON 38, BPF 39.
	const want = "000000c000080004"
	for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
		if !strings.Contains(string(text), set+":\t"+want) {
			t.Errorf("%s is not %s:\n%s", set, want, text)
		}
	}
	for _, line := range []string{"NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(string(text), line) {
			t.Errorf("no %q:\n%s", line, text)
		}
	}
}

// server has the kubelet run the server, as an ordinary user, and returns its address. It is ready,
// also after it was killed: its keys must not be open to the group then.
func (n *machine) server(all map[string]object, cert, key string) string {
	n.t.Helper()
	n.apply(all, "ServiceAccount/quell-server", "ConfigMap/quell-server")
	out := n.ctr("run", "--rm", "--snapshotter", "native", "localhost/quell-server:"+os.Getenv("QUELL_IMAGE_TAG"), "quell-test-token", "/usr/bin/quell-server", "token", "alice", "viewer")
	_, line, ok := strings.Cut(out, "line for tokens_file:\n")
	if !ok {
		n.t.Fatalf("token: %s", out)
	}
	n.kubectl("", "-n", "quell", "create", "secret", "generic", "quell-tokens", "--from-literal", "tokens="+strings.TrimSpace(line))
	n.kubectl("", "-n", "quell", "create", "secret", "tls", "quell-server-tls", "--cert", n.write("tls.crt", cert), "--key", n.write("tls.key", key))
	n.start(pod(all["StatefulSet/quell-server"], "quell-server-0", "quell", func(spec object) {
		spec["nodeName"] = node
		// A volume that begins empty, of root, and is given to the group, as most drivers do.
		spec["volumes"] = append(spec["volumes"].([]any), object{"name": "state", "emptyDir": object{}})
	}))
	n.ctr("tasks", "kill", "--signal", "SIGKILL", n.container("quell", "quell-server-0"))
	quelltest.Until(n.t, "the server is ready again", func() bool {
		out, err := n.try("", "-n", "quell", "get", "pod", "quell-server-0", "-o", "jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}")
		return err == nil && out == "1 true"
	})
	return n.kubectl("", "-n", "quell", "get", "pod", "quell-server-0", "-o", "jsonpath={.status.podIP}")
}

// certificate is a certificate of a name and addresses that signs itself, and its key.
func certificate(t *testing.T, name string, ips ...net.IP) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: ips, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * 365 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return text("CERTIFICATE", signed), text("EC PRIVATE KEY", der)
}
