//go:build runtimes

package origin

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/child"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// task is the program of every container: it accepts connections at a port, if one is given, and
// uses a little CPU time.
const task = `
#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
static void end(int s) { _exit(0); }
int main(int argc, char **argv) {
	signal(SIGTERM, end); signal(SIGINT, end);
	if (argc > 1) {
		struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
		int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(fd, (void *)&a, sizeof a) || listen(fd, 1)) return 1;
	}
	for (;;) { for (volatile long i = 0; i < 2000000; i++); usleep(50000); }
}
`

// stage is a directory with everything that the runtimes need.
type stage struct {
	t    *testing.T
	dir  string // short: sockets' paths are limited
	env  []string
	task string // the static program
	name string // unique, of this run
}

func newStage(t *testing.T) *stage {
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1, "lxc-start", "qemu-system-x86_64", "libvirtd", "virsh")
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	packages := filepath.Join(home, ".cache/quell/runtimes")
	if out, err := exec.Command("../../testkit/quelltest/runtimes.sh", packages).CombinedOutput(); err != nil {
		t.Fatalf("unpack runtimes: %v: %s", err, out)
	}
	dir, err := os.MkdirTemp("/tmp", "qrt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Cleanup(removeCgroups)
	s := &stage{t: t, dir: dir, task: dir + "/rootfs/task", name: "quell-test-" + strconv.Itoa(os.Getpid())}
	root := packages + "/root"
	s.env = append(os.Environ(), "PATH="+root+"/usr/bin:"+root+"/usr/sbin:"+os.Getenv("PATH"),
		"LD_LIBRARY_PATH="+root+"/usr/lib/x86_64-linux-gnu:"+root+"/lib/x86_64-linux-gnu")
	for _, sub := range []string{"rootfs", "rootfs/proc", "rootfs/sys", "rootfs/dev"} {
		if err := os.Mkdir(dir+"/"+sub, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.write("task.c", task)
	s.run("gcc", "-O1", "-static", "-o", s.task, dir+"/task.c")
	return s
}

// removeCgroups removes the cgroups that the runtimes leave, if nothing is in them.
func removeCgroups() {
	for _, pattern := range []string{"kubepods/*/pod*", "kubepods/*", "kubepods", "docker", "libpod_parent/*", "libpod_parent", "system.slice/system-quell-test-*.slice", "system.slice", "lxc.monitor.quell-test-*", "lxc.payload.quell-test-*", "lxc.pivot", "machine/qemu-*-quell-test-*/*", "machine/qemu-*-quell-test-*", "machine", "k8s.io/*", "k8s.io"} {
		all, _ := filepath.Glob("/sys/fs/cgroup/*/" + pattern)
		for _, dir := range all {
			_ = os.Remove(dir) // rmdir
		}
	}
}

func (s *stage) write(name, text string) string {
	s.t.Helper()
	file := filepath.Join(s.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		s.t.Fatal(err)
	}
	return file
}

// command finds a program of the stage's PATH.
func (s *stage) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	path := name
	for _, dir := range append([]string{"/usr/bin", "/usr/sbin"}, filepath.SplitList(strings.TrimPrefix(s.env[len(s.env)-2], "PATH="))...) {
		if _, err := os.Stat(dir + "/" + name); err == nil {
			path = dir + "/" + name
			break
		}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir = s.env, s.dir
	return cmd
}

func (s *stage) run(name string, args ...string) string {
	s.t.Helper()
	var said bytes.Buffer
	cmd := s.command(context.Background(), name, args...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%s %q: %v: %s", name, args, err, child.End(said.Bytes()))
	}
	return strings.TrimSpace(string(out))
}

// daemon starts a runtime, and ends it with the test.
func (s *stage) daemon(socket, name string, args ...string) {
	s.t.Helper()
	p, err := child.Start(s.command(context.Background(), name, args...), child.Options{Name: name, Log: s.dir + "/" + name + ".log"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := p.Stop(30 * time.Second); err != nil {
			s.t.Log(err)
		}
	})
	if err := p.Until(s.t.Context(), 2*time.Minute, "make its socket", func() (bool, error) { return exists(socket), nil }); err != nil {
		s.t.Fatalf("%v: %s", err, p.Tail())
	}
}

// archive is a tar archive of files by name.
func archive(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, data := range files {
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: 0o755}), second(w.Write(data))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func second(_ int, err error) error { return err }

// image is an OCI image with the task's program, as an archive.
func (s *stage) image(ref string) string {
	s.t.Helper()
	program, err := os.ReadFile(s.task)
	if err != nil {
		s.t.Fatal(err)
	}
	sum := func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
	document := func(v any) []byte {
		text, err := json.Marshal(v)
		if err != nil {
			s.t.Fatal(err)
		}
		return text
	}
	type m = map[string]any
	layer := archive(s.t, map[string][]byte{"task": program})
	config := document(m{"architecture": "amd64", "os": "linux", "config": m{"Entrypoint": []string{"/task"}}, "rootfs": m{"type": "layers", "diff_ids": []string{"sha256:" + sum(layer)}}})
	manifest := document(m{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": m{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "sha256:" + sum(config), "size": len(config)},
		"layers": []m{{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "sha256:" + sum(layer), "size": len(layer)}}})
	index := document(m{"schemaVersion": 2, "manifests": []m{{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:" + sum(manifest), "size": len(manifest),
		"annotations": m{"io.containerd.image.name": ref, "org.opencontainers.image.ref.name": ref}}}})
	all := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": index}
	for _, b := range [][]byte{layer, config, manifest} {
		all["blobs/sha256/"+sum(b)] = b
	}
	return s.write("image.tar", string(archive(s.t, all)))
}

// pods is containerd with pods.
type pods struct {
	*stage
	grpc   *grpcClient
	socket string
}

func (s *stage) containerd() *pods {
	s.t.Helper()
	const ref = "localhost/pause:1"
	p := &pods{stage: s, socket: s.dir + "/c.sock"}
	config := s.write("containerd.toml", fmt.Sprintf(`version = 2
root = %q
state = %q
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
[plugins."io.containerd.internal.v1.opt"]
  path = %q
`, s.dir+"/cr", s.dir+"/cs", p.socket, ref, s.dir+"/opt"))
	s.daemon(p.socket, "containerd", "--config", config)
	s.run("ctr", "-a", p.socket, "-n", "k8s.io", "images", "import", "--snapshotter", "native", s.image(ref))
	p.grpc = newGRPC(p.socket)
	s.t.Cleanup(p.grpc.close)
	return p
}

func (p *pods) call(method string, request []byte) (id string) {
	p.t.Helper()
	answer, err := p.grpc.call(p.t.Context(), "/runtime.v1.RuntimeService/"+method, request)
	if err != nil {
		p.t.Fatal(err)
	}
	err = fields(answer, func(field protowire.Number, _ uint64, b []byte) error {
		if field == 1 {
			id = string(b)
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return id
}

// start runs a pod with one container, as the kubelet would: its labels, its cgroup.
func (p *pods) start(namespace, pod, uid, container, parent string, labels, annotations []string, args ...string) (sandbox, id string) {
	p.t.Helper()
	const nodeNetwork = 2 // NamespaceMode
	meta := text(text(text(nil, 1, pod), 2, uid), 3, namespace)
	linux := nested(text(nil, 1, parent+"/pod"+uid), 2, nested(nil, 1, number(nil, 1, nodeNetwork)))
	config := nested(pairs(pairs(text(nested(nil, 1, meta), 3, p.dir+"/log"), 6, labels...), 7, annotations...), 8, linux)
	sandbox = p.call("RunPodSandbox", nested(nil, 1, config))
	c := nested(nested(nil, 1, text(nil, 1, container)), 2, text(nil, 1, "localhost/pause:1"))
	for _, a := range args {
		c = text(c, 4, a)
	}
	c = pairs(c, 9, labelPod, pod, labelNamespace, namespace, labelContainer, container, "io.kubernetes.pod.uid", uid)
	id = p.call("CreateContainer", nested(nested(text(nil, 1, sandbox), 2, c), 3, config))
	p.t.Cleanup(func() {
		for _, method := range []string{"StopPodSandbox", "RemovePodSandbox"} {
			if _, err := p.grpc.call(context.Background(), "/runtime.v1.RuntimeService/"+method, text(nil, 1, sandbox)); err != nil {
				p.t.Error(err)
			}
		}
	})
	p.call("StartContainer", text(nil, 1, id))
	return sandbox, id
}

// docker starts dockerd with an image of the task; run starts a container.
func (s *stage) docker() (run func(args ...string) string, data string) {
	s.t.Helper()
	data = s.dir + "/dd"
	socket := s.dir + "/d.sock"
	s.daemon(socket, "dockerd", "--iptables=false", "--bridge=none", "--storage-driver", "vfs", "--exec-opt", "native.cgroupdriver=cgroupfs",
		"--data-root", data, "--exec-root", s.dir+"/de", "--pidfile", s.dir+"/d.pid", "-H", "unix://"+socket)
	host := "unix://" + socket
	s.run("docker", "-H", host, "import", s.rootArchive(), "task:1")
	return func(args ...string) string { return s.run("docker", append([]string{"-H", host}, args...)...) }, data
}

func (s *stage) rootArchive() string {
	s.t.Helper()
	program, err := os.ReadFile(s.task)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.write("root.tar", string(archive(s.t, map[string][]byte{"task": program})))
}

// podman returns a function that runs podman with storage of its own.
func (s *stage) podman() (run func(args ...string) string, data string) {
	s.t.Helper()
	data = s.dir + "/pd"
	policy := s.write("policy.json", `{"default":[{"type":"insecureAcceptAnything"}]}`)
	all := []string{"--root", data, "--runroot", s.dir + "/pr", "--tmpdir", s.dir + "/pt", "--cgroup-manager=cgroupfs", "--storage-driver=vfs", "--events-backend=none"}
	runc := s.command(context.Background(), "runc").Path
	conmon := s.command(context.Background(), "conmon").Path
	run = func(args ...string) string {
		s.t.Helper()
		return s.run("podman", append(append(slices.Clone(all), "--runtime", runc, "--conmon", conmon), args...)...)
	}
	run("import", "--signature-policy", policy, s.rootArchive(), "localhost/task:1")
	return run, data
}

// lxc starts a container with the task as its init.
func (s *stage) lxc(name string, args ...string) {
	s.t.Helper()
	config := s.write("lxc.conf", fmt.Sprintf("lxc.uts.name = %s\nlxc.rootfs.path = dir:%s\nlxc.init.cmd = /task %s\nlxc.net.0.type = empty\nlxc.apparmor.profile = unconfined\n",
		name, s.dir+"/rootfs", strings.Join(args, " ")))
	lxc := func(program string, args ...string) string {
		return s.run(program, append([]string{"-P", s.dir, "-n", name}, args...)...)
	}
	lxc("lxc-start", "-f", config, "-o", s.dir+"/lxc.log")
	s.t.Cleanup(func() { lxc("lxc-stop", "-k") })
}

// guest starts a virtual machine in a cgroup. It has nothing to boot.
func (s *stage) guest(cgroup, name string) {
	s.t.Helper()
	p, err := child.Start(s.command(context.Background(), "qemu-system-x86_64", "-accel", "tcg", "-name", "guest="+name+",debug-threads=on", "-smp", "2", "-m", "64",
		"-nodefaults", "-nographic", "-net", "none"), child.Options{Name: "qemu", Log: s.dir + "/qemu.log"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = p.Kill() })
	s.move(p.PID, cgroup)
}

// libvirt starts libvirtd, in a mount namespace of its own with directories and a user of its own, and a
// virtual machine of it. The machine has nothing to boot, and is emulated.
func (s *stage) libvirt(name string) {
	s.t.Helper()
	dirs := []string{"/etc/libvirt", "/run/libvirt", "/var/lib/libvirt", "/var/cache/libvirt", "/var/log/libvirt"}
	for _, dir := range dirs {
		if os.Mkdir(dir, 0o755) == nil {
			s.t.Cleanup(func() { os.Remove(dir) })
		}
	}
	script := s.write("libvirt.sh", fmt.Sprintf(`set -e
for dir in %s; do mount -t tmpfs none $dir; done
for file in passwd group; do
	cp /etc/$file %[2]s/$file
	echo libvirt-qemu:x:64055:64055::/:/bin/false >>%[2]s/$file
	mount --bind %[2]s/$file /etc/$file
done
cat >/etc/libvirt/qemu.conf <<-END
	user = "root"
	group = "root"
	security_driver = "none"
	stdio_handler = "file"
	remember_owner = 0
	namespaces = []
END
exec libvirtd --config %[2]s/libvirt.conf --pid-file %[2]s/libvirt.pid
`, strings.Join(dirs, " "), s.dir))
	s.write("libvirt.conf", fmt.Sprintf("auth_unix_rw = \"none\"\nunix_sock_dir = %q\n", s.dir))
	s.daemon(s.dir+"/libvirt-sock", "unshare", "-m", "sh", script)
	virsh := func(args ...string) string {
		return s.run("virsh", append([]string{"-c", "qemu:///system?socket=" + s.dir + "/libvirt-sock"}, args...)...)
	}
	virsh("create", s.write("domain.xml", fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>64</memory><vcpu>2</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><seclabel type='none'/>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator><memballoon model='none'/></devices></domain>`, name)))
	s.t.Cleanup(func() { virsh("destroy", name) })
}

// unit starts the task in a cgroup as systemd has them.
func (s *stage) unit(cgroup string, args ...string) {
	s.t.Helper()
	p, err := child.Start(exec.Command(s.task, args...), child.Options{Name: "unit", Log: s.dir + "/unit.log"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = p.Kill() })
	s.move(p.PID, cgroup)
}

// move makes a cgroup in cgroup2 and moves a process into it.
func (s *stage) move(pid int, cgroup string) {
	s.t.Helper()
	top := quelltest.CgroupMount(s.t, "")
	if err := os.MkdirAll(filepath.Dir(top+cgroup), 0o755); err != nil { // removeCgroups removes what is new
		s.t.Fatal(err)
	}
	dir := quelltest.MakeCgroup(s.t, top+cgroup)
	s.t.Cleanup(func() { _ = os.WriteFile(top+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0o644) })
	if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// view is a task as `quell top --once --json` prints it.
type view struct {
	Task, Job, Class, Cgroup string
	ClassWhy                 string `json:"class_why"`
	Labels                   map[string]string
	Protected, Proposed      bool
	CPU                      float64
}

// Real runtimes, all started after the agent: every task has its name, job and class in `quell top`,
// and in its first sample; sandboxes are no tasks; a restarted container is another task.
func TestRuntimes(t *testing.T) {
	s := newStage(t)
	quell, agent := quelltest.Program(t, "quell"), quelltest.Program(t, "quell-agent")
	p := s.containerd()
	docker, dockerData := s.docker()
	podman, podmanData := s.podman()
	config := s.write("agent.yaml", fmt.Sprintf(`
state_dir: %q
socket: %q
journals: ""
listen: ""
exclusive: false
record: %q
signals: [runq]
tick: 100ms
sampling: {duration: 500ms, period: 1s, phase: fixed}
names: {cri: [%q], docker: %q, podman: [%q]}
`, s.dir+"/state", s.dir+"/a.sock", s.dir+"/trace.csv", p.socket, dockerData, podmanData))
	if err := os.Mkdir(s.dir+"/state", 0o700); err != nil {
		t.Fatal(err)
	}
	a, err := child.Start(exec.Command(agent, "--config", config), child.Options{Name: "the agent", Log: s.dir + "/agent.log"})
	if err != nil {
		t.Fatal(err)
	}
	client := api.NewClient(s.dir + "/a.sock")
	err = a.Until(t.Context(), time.Minute, "answer", func() (bool, error) {
		st, err := client.Status(t.Context())
		return err == nil && st.Intervals > 0, nil
	})
	if err != nil {
		t.Fatalf("%v: %s", err, a.Tail())
	}

	web, load := "11111111-2222-3333-4444-555555555555", "66666666-2222-3333-4444-555555555555"
	box1, webID := p.start("shop", "web-5d8f7c9b6d-x7k2p", web, "app", "/kubepods/burstable", []string{"pod-template-hash", "5d8f7c9b6d"}, nil, "28431")
	box2, _ := p.start("shop", "load-29384756-abcde", load, "load", "/kubepods/besteffort", []string{"job-name", "load-29384756"}, nil)
	limits := []string{"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "none"}
	docker(append(append([]string{"run", "-d", "--name", s.name + "-api-1", "--label", "com.docker.compose.project=" + s.name, "--label", "com.docker.compose.service=api"}, limits...), "task:1", "/task", "8080")...)
	podman(append(append([]string{"run", "-d", "--name", s.name + "-db"}, limits...), "localhost/task:1", "/task")...)
	t.Cleanup(func() { podman("rm", "-f", s.name+"-db") })
	t.Cleanup(func() { docker("rm", "-f", s.name+"-api-1") })
	s.lxc(s.name+"-box", "8081")
	s.guest("/machine/"+s.name+"-vm", s.name+"-guest")
	s.libvirt(s.name + "-domain.1")
	s.unit("/system.slice/"+s.name+".service", "28432")
	s.unit("/system.slice/system-" + s.name + ".slice/" + s.name + "@2.service")

	const ls, batch, best = "latency-sensitive", "batch", "best-effort"
	wants := []struct{ name, job, class, why string }{
		{"shop/web-5d8f7c9b6d-x7k2p/app", "shop/web/app", ls, "accepts connections at TCP port 28431"},
		{"shop/load-29384756-abcde/load", "shop/load/load", best, "QoS class BestEffort"},
		{"docker/" + s.name + "-api-1", "docker/" + s.name + "-api", ls, "accepts connections at TCP port 8080"},
		{"podman/" + s.name + "-db", "podman/" + s.name + "-db", batch, "nothing speaks for another class"},
		{"lxc/" + s.name + "-box", "lxc/" + s.name + "-box", ls, "accepts connections at TCP port 8081"},
		{"vm/" + s.name + "-guest", "vm/" + s.name + "-guest", batch, "virtual machine"},
		{"vm/" + s.name + "-domain.1", "vm/" + s.name + "-domain.1", batch, "virtual machine"},
		{s.name + ".service", s.name + ".service", ls, "accepts connections at TCP port 28432"},
		{s.name + "@2.service", s.name + "@.service", batch, "nothing speaks for another class"},
	}
	top := func() (all []view) {
		out, err := exec.Command(quell, "top", "--once", "--json", "--socket", s.dir+"/a.sock").Output()
		if err != nil || json.Unmarshal(out, &all) != nil {
			t.Fatalf("quell top: %v: %s", err, out)
		}
		return all
	}
	var all []view
	find := func(name string) *view {
		if i := slices.IndexFunc(all, func(v view) bool { return v.Task == name }); i >= 0 {
			return &all[i]
		}
		return nil
	}
	started := time.Now()
	err = a.Until(t.Context(), 2*time.Minute, "name and class all tasks", func() (bool, error) {
		all = top()
		return !slices.ContainsFunc(wants, func(w struct{ name, job, class, why string }) bool {
			v := find(w.name)
			return v == nil || v.Class != w.class || v.CPU == 0 || strings.HasPrefix(w.name, "vm/") && v.Labels["vcpus"] == ""
		}), nil
	})
	t.Logf("all named and classed after %v", time.Since(started).Round(100*time.Millisecond))
	if err != nil {
		t.Errorf("%v; the agent's log: %s", err, a.Tail())
	}
	for _, w := range wants {
		switch v := find(w.name); {
		case v == nil:
			t.Errorf("%s is missing", w.name)
		case v.Job != w.job || v.Class != w.class || v.ClassWhy != w.why || !v.Proposed:
			t.Errorf("%+v, want %+v", *v, w)
		default:
			t.Logf("%-44s %-36s %-18s %s  (%s)", v.Task, v.Job, v.Class, v.ClassWhy, v.Cgroup)
		}
	}
	for _, name := range []string{"-guest", "-domain.1"} {
		if v := find("vm/" + s.name + name); v != nil && (v.Labels["vcpus"] != "2" || !v.Protected) {
			t.Errorf("the guest is %+v", *v)
		}
	}
	for _, v := range all {
		if strings.Contains(v.Cgroup+v.Task, box1) || strings.Contains(v.Cgroup+v.Task, box2) || strings.Contains(v.Cgroup, "conmon") {
			t.Errorf("a sandbox or a helper is a task: %+v", v)
		}
	}
	// Commands take the name, its end, and twelve characters of the id.
	for _, name := range []string{"shop/web-5d8f7c9b6d-x7k2p/app", "web-5d8f7c9b6d-x7k2p/app", webID[:12], s.name + "-api-1"} {
		out, err := exec.Command(quell, "protect", name, "--reason", "test", "--socket", s.dir+"/a.sock").CombinedOutput()
		if err != nil {
			t.Errorf("protect %s: %v: %s", name, err, out)
		}
	}
	docker("restart", "-t", "1", s.name+"-api-1")
	err = a.Until(t.Context(), time.Minute, "name the restarted container", func() (bool, error) {
		all = top()
		v := find("docker/" + s.name + "-api-1")
		return v != nil && v.CPU > 0, nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := a.Stop(30 * time.Second); err != nil {
		t.Error(err)
	}
	checkSamples(t, s.dir+"/trace.csv", s.name, webID)
}

// checkSamples: no sample of a container is under its path.
func checkSamples(t *testing.T, file, name, id string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.Contains(line, "docker/"+name), strings.Contains(line, "shop/web"):
			named++
		case strings.Contains(line, id), strings.Contains(line, "/docker/"), strings.Contains(line, "libpod-"), strings.Contains(line, "/lxc.payload"):
			t.Errorf("a sample without a name: %s", line)
		}
	}
	if named == 0 {
		t.Error("no sample has a name")
	}
}
