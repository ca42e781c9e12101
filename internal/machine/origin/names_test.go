package origin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

func unified(path string) host.Place { return host.Place{Hierarchy: sample.Unified, Path: path} }

const podPath = "/kubepods/burstable/pod" + somePod + "/"

// A container and its sandbox are named by the runtime's answers; what no runtime knows is asked for
// again, and named when it is known.
func TestNamesOfPods(t *testing.T) {
	r := &runtime{answers: map[string][]byte{listSandboxes: nil, listContainers: nil}}
	n := New(nil, Sources{CRI: []string{r.serve(t)}, Timeout: time.Minute})
	defer n.cri.close()
	n.members = func(host.Place, uint64) ([]int, error) { return []int{7}, nil }
	n.processes = func([]int) Process { return Process{Read: true, Listens: []int{80}} }
	app, box := unified(podPath+someID), unified(podPath+sandboxID)
	if f, settled := n.Facts(app, 1); settled || f.Name != "" || f.Job != "kubernetes/"+somePod || n.Changed() {
		t.Errorf("before anything is asked: %+v, %v", f, settled)
	}
	n.Facts(box, 2)
	next := n.round(t.Context())
	if f, settled := n.Facts(app, 1); settled || f.Name != "" || !n.Changed() || f.Process.Listens == nil {
		t.Errorf("the runtime does not know it yet: %+v, %v", f, settled)
	}
	if wait := time.Until(next); wait > firstMiss {
		t.Errorf("it asks again in %v", wait)
	}
	r.set(answers(), "")
	for _, e := range n.entries {
		e.next = time.Time{}
	}
	n.round(t.Context())
	if f, settled := n.Facts(app, 1); !settled || f.Name != "shop/web-5d8f7c9b6d-x7k2p/app" || f.Job != "shop/web/app" || !n.Changed() {
		t.Errorf("the runtime knows it: %+v, %v", f, settled)
	}
	if f, settled := n.Facts(box, 2); !settled || !f.Sandbox {
		t.Errorf("the sandbox: %+v, %v", f, settled)
	}
	if n.Err() != nil || n.Changed() {
		t.Errorf("error %v, or a change twice", n.Err())
	}
	// The runtime stops answering: names stay.
	r.set(nil, "gone")
	for _, e := range n.entries {
		e.next = time.Time{}
	}
	n.round(t.Context())
	if f, _ := n.Facts(app, 1); f.Name == "" || n.Err() == nil || !strings.Contains(n.Err().Error(), "gone") {
		t.Errorf("%+v, %v", f, n.Err())
	}
	// Another cgroup at the same path is another container's.
	if _, settled := n.Facts(app, 9); settled {
		t.Error("another inode is known already")
	}
	n.Forget(app, 1)
	n.Forget(app, 9)
	n.Forget(box, 2)
	if len(n.entries) != 0 {
		t.Errorf("%d entries are kept", len(n.entries))
	}
}

// A kubelet that does not answer changes no class: a critical pod must not be taken for one that may be capped, nor
// another's owner become another job.
func TestAKubeletThatDoesNotAnswer(t *testing.T) {
	var down atomic.Bool
	kubelet := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if down.Load() {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"items": [{"metadata": {"uid": %q, "ownerReferences": [{"kind": "Rollout", "name": "front", "controller": true}]},
			"spec": {"priorityClassName": "system-cluster-critical", "priority": 2000000000}}]}`, somePod)
	}))
	defer kubelet.Close()
	r := &runtime{answers: answers()}
	n := New(nil, Sources{CRI: []string{r.serve(t)}, Kubelet: Kubelet{URL: kubelet.URL}, Timeout: time.Minute})
	defer n.cri.close()
	n.members = func(host.Place, uint64) ([]int, error) { return nil, errors.New("none") }
	app := unified(podPath + someID)
	n.Facts(app, 1)
	for _, fails := range []bool{false, true, true} {
		down.Store(fails)
		for _, e := range n.entries {
			e.next = time.Time{}
		}
		n.round(t.Context())
		f, _ := n.Facts(app, 1)
		if f.PriorityClass != "system-cluster-critical" || f.Priority != 2000000000 || f.Job != "shop/front/app" || (n.Err() != nil) != fails {
			t.Errorf("the kubelet fails: %v: %+v, %v", fails, f, n.Err())
		}
	}
}

// A kubelet that has not answered is asked again each 5 minutes: what it says of priorities may come late.
func TestAKubeletIsAskedUntilItAnswers(t *testing.T) {
	r := &runtime{answers: answers()}
	n := New(nil, Sources{CRI: []string{r.serve(t)}, Kubelet: Kubelet{URL: "http://127.0.0.1:1/"}, Timeout: time.Minute})
	defer n.cri.close()
	n.members = func(host.Place, uint64) ([]int, error) { return nil, errors.New("none") }
	app := unified(podPath + someID)
	n.Facts(app, 1)
	for range 2 * len(lookAfter) {
		n.entries[key{app, 1}].next = time.Time{}
		n.round(t.Context())
	}
	if wait := time.Until(n.entries[key{app, 1}].next); wait > 5*time.Minute {
		t.Errorf("it is asked again in %s", wait)
	}
}

// Without a runtime's socket the names of pods are reported as missing.
func TestNoRuntime(t *testing.T) {
	n := New(nil, Sources{CRI: []string{"/nonexistent"}, Timeout: time.Second})
	n.members = func(host.Place, uint64) ([]int, error) { return nil, errors.New("none") }
	n.Facts(unified(podPath+someID), 1)
	n.round(t.Context())
	if err := n.Err(); err == nil || !strings.Contains(err.Error(), "names of pods are not known") {
		t.Errorf("error %v", err)
	}
}

// Files of Docker and podman name containers, and units name themselves.
func TestNamesOfOthers(t *testing.T) {
	n := New(nil, Sources{Docker: "testdata/docker", Podman: []string{"testdata/podman"}, Timeout: time.Second})
	n.members = func(host.Place, uint64) ([]int, error) { return nil, errors.New("none") }
	for path, want := range map[string]string{
		"/docker/" + someID:                          "docker/shop-web-1",
		"/machine.slice/libpod-" + someID + ".scope": "podman/db",
		"/custom/" + someID:                          "container/shop-web-1",
		"/system.slice/nginx.service":                "nginx.service",
	} {
		n.Facts(unified(path), 1)
		n.round(t.Context())
		if f, settled := n.Facts(unified(path), 1); !settled || f.Name != want {
			t.Errorf("%s: %+v, %v", path, f, settled)
		}
	}
}

// A user names the cgroups in the slice of that user. They are not the system's containers, whose
// identifiers every user can see, nor their helpers, which are no tasks: what runs there has names of
// that user's.
func TestUsersTakeNoNames(t *testing.T) {
	r := &runtime{answers: answers()}
	n := New(nil, Sources{CRI: []string{r.serve(t)}, Docker: "testdata/docker", Podman: []string{"testdata/podman"}, Timeout: time.Minute})
	defer n.cri.close()
	n.members = func(host.Place, uint64) ([]int, error) { return nil, errors.New("none") }
	n.atHome = func(uid int) (map[string]*record, error) {
		return map[string]*record{someID: {name: fmt.Sprint("db-of-", uid)}}, nil
	}
	n.rest = 0
	const slice = "/user.slice/user-1000.slice/user@1000.service/"
	for path, want := range map[string][2]string{
		"app.slice/docker-" + someID + ".scope":                       {"", "user-1000/docker/" + someID[:12]},
		"app.slice/nerdctl-" + someID + ".scope":                      {"", "user-1000/containerd/" + someID[:12]},
		"app.slice/" + someID:                                         {"user-1000/container/db-of-1000", "user-1000/container/db-of-1000"},
		"kubepods-pod" + somePod + ".slice/crio-" + someID + ".scope": {"", "user-1000/kubernetes/" + somePod},
		"user.slice/libpod-" + someID + ".scope":                      {"user-1000/podman/db-of-1000", "user-1000/podman/db-of-1000"},
		"user.slice/libpod-conmon-" + someID + ".scope":               {"user-1000/libpod-conmon-" + someID + ".scope", "user-1000/libpod-conmon.scope"},
		"app.slice/systemd-nspawn@box.service":                        {"user-1000/machined/box", "user-1000/machined/box"},
		"app.slice/lxc.monitor.box":                                   {"user-1000/lxc/lxc.monitor.box", "user-1000/lxc/lxc.monitor.box"},
	} {
		at := unified(slice + path)
		n.Facts(at, 1)
		n.round(t.Context())
		// It is settled, and its processes are looked at again: there is no runtime that may know more.
		if f, settled := n.Facts(at, 1); f.Name != want[0] || f.Job != want[1] || f.Helper || !settled {
			t.Errorf("%s: %q, %q, helper %v, settled %v", path, f.Name, f.Job, f.Helper, settled)
		}
	}
	guest := facts(Parse(slice+"web"), nil, Process{Guest: "db"})
	if guest.Name != "user-1000/vm/db" || guest.Job != guest.Name {
		t.Errorf("a guest of a user: %+v", guest)
	}
}

// TestContainersTakeNoNames: in a container or machine that may make cgroups none has the name of another's container or
// machine, what that one's labels say, or is taken for a helper.
func TestContainersTakeNoNames(t *testing.T) {
	n := New(nil, Sources{Docker: "testdata/docker", Podman: []string{"testdata/podman"}, Timeout: time.Minute})
	n.members = func(host.Place, uint64) ([]int, error) { return nil, errors.New("none") }
	for _, own := range []string{"/lxc.payload.evil/", "/lxc/101/ns/", "/system.slice/docker-" + someID + ".scope/", "/kubepods/pod" + somePod + "/" + someID + "/", "/machine.slice/systemd-nspawn@evil.service/payload/"} {
		for _, name := range []string{"docker-" + someID + ".scope", "docker/" + someID, "libpod-" + someID + ".scope", "qemu-1-web.libvirt-qemu", "qemu.slice/102.scope", "systemd-nspawn@web.service", "lxc.monitor.web",
			"user.slice/user-1000.slice/docker-" + someID + ".scope", "user-1000.slice/libpod-" + someID + ".scope"} {
			at := unified(own + name)
			n.Facts(at, 1)
			n.round(t.Context())
			if f, _ := n.Facts(at, 1); f.Name != "" || f.Job != "" || f.Helper || f.Annotations != nil {
				t.Errorf("%s: %q, %q, helper %v, %v", at.Path, f.Name, f.Job, f.Helper, f.Annotations)
			}
		}
	}
	for _, name := range []string{"qemu-1-web.libvirt-qemu", "qemu.slice/102.scope", "systemd-nspawn@web.service", "lxc.payload.web", "lxc.monitor.web"} {
		if o := Parse("/custom/" + someID + "/" + name); o.Known() { // there may be containers in a pod of podman
			t.Errorf("%s in a container: %+v", name, o)
		}
	}
}

// Processes are looked at again, because a server listens some time after its start; a look that
// hangs delays the others by its deadline only, and is the last one at that cgroup.
func TestLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(nil, Sources{Timeout: time.Second})
		var mu sync.Mutex
		looks := map[string]int{}
		hang := make(chan bool)
		n.members = func(at host.Place, _ uint64) ([]int, error) {
			mu.Lock()
			looks[at.Path]++
			pid := looks[at.Path]
			mu.Unlock()
			if at.Path == "/a.slice/a.service" {
				<-hang
			}
			return []int{pid}, nil
		}
		n.processes = func(pids []int) Process {
			p := Process{Read: true}
			if pids[0] > 1 {
				p.Listens = []int{80}
			}
			return p
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() { n.Run(ctx); close(ended) }()
		a, b := unified("/a.slice/a.service"), unified("/b.slice/b.service")
		n.Facts(a, 1)
		n.Facts(b, 2)
		<-time.After(1100 * time.Millisecond)
		if f, settled := n.Facts(b, 2); !settled || !f.Process.Read || f.Process.Listens != nil {
			t.Errorf("after the start: %+v, %v", f, settled)
		}
		if f, settled := n.Facts(a, 1); !settled || f.Name != "a.service" || f.Process.Read {
			t.Errorf("the one that hangs: %+v, %v", f, settled)
		}
		n.Changed()
		<-time.After(lookAfter[0])
		if f, _ := n.Facts(b, 2); f.Process.Listens == nil || !n.Changed() {
			t.Errorf("after the second look: %+v", f)
		}
		<-time.After(2 * time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if looks[b.Path] < 6 || looks[b.Path] > 8 || looks[a.Path] != 1 {
			t.Errorf("looks in two hours: %v", looks)
		}
		close(hang)
		cancel()
		<-ended
	})
}

// Looks that return late keep no thread any more: the processes of all tasks are looked at again, and
// until then the reason is told why they are not.
func TestLooksThatReturnLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(nil, Sources{Timeout: time.Second})
		hang := make(chan bool)
		n.members = func(at host.Place, _ uint64) ([]int, error) {
			if strings.HasPrefix(at.Path, "/a.slice/") {
				<-hang
			}
			return []int{1}, nil
		}
		n.processes = func([]int) Process { return Process{Read: true} }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() { n.Run(ctx); close(ended) }()
		all := []host.Place{unified("/b.slice/b.service")}
		for i := range mostHung {
			all = append(all, unified(fmt.Sprintf("/a.slice/%d.service", i)))
			n.Facts(all[i+1], 1)
		}
		<-time.After(time.Minute)
		n.Facts(all[0], 1)
		<-time.After(time.Minute)
		if f, settled := n.Facts(all[0], 1); f.Process.Read || !settled || !errors.Is(n.Err(), errHung) {
			t.Errorf("while others hang: %+v, %v", f, n.Err())
		}
		close(hang)
		<-time.After(2 * time.Hour)
		for _, at := range all {
			if f, _ := n.Facts(at, 1); !f.Process.Read {
				t.Errorf("%s: not looked at again", at.Path)
			}
		}
		if n.Err() != nil {
			t.Error(n.Err())
		}
		cancel()
		<-ended
	})
}

// The files of a user's own podman may be on a file system that does not answer: others' names are found
// nevertheless, however many containers the user has, and the end does not wait for it.
func TestAHomeThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(nil, Sources{Timeout: time.Second})
		n.members = func(host.Place, uint64) ([]int, error) { return nil, errors.New("none") }
		hang := make(chan bool)
		n.atHome = func(uid int) (map[string]*record, error) {
			if uid == 1000 {
				<-hang
			}
			return map[string]*record{someID: {name: "db"}}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() { n.Run(ctx); close(ended) }()
		of := func(uid string) host.Place {
			return unified("/user.slice/user-" + uid + ".slice/user@" + uid + ".service/user.slice/libpod-" + someID + ".scope")
		}
		for i := range 2 * mostHung {
			n.Facts(of("1000"), uint64(1+i))
		}
		n.Facts(of("1001"), 1)
		<-time.After(1500 * time.Millisecond)
		if f, settled := n.Facts(of("1001"), 1); !settled || f.Name != "user-1001/podman/db" {
			t.Errorf("another user's: %+v, %v", f, settled)
		}
		if f, settled := n.Facts(of("1000"), 1); settled || f.Name != "" || n.Err() == nil || !strings.Contains(n.Err().Error(), "user 1000") {
			t.Errorf("the one that hangs: %+v, %v; %v", f, settled, n.Err())
		}
		cancel()
		<-ended
		close(hang)
	})
}

// TestAttackAUsersListOfContainers: a user with a list of containers that takes long to read, and with cgroups that are
// called like containers, has it read for a part of the time, and others' names are found meanwhile.
func TestAttackAUsersListOfContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(nil, Sources{Timeout: 2 * time.Second})
		n.members = func(host.Place, uint64) ([]int, error) { return nil, errors.New("none") }
		var reads atomic.Int32
		n.atHome = func(int) (map[string]*record, error) {
			reads.Add(1)
			<-time.After(time.Second)
			return nil, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() { n.Run(ctx); close(ended) }()
		for i := range 600 {
			n.Facts(unified("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-"+someID+".scope"), uint64(1+i))
			<-time.After(100 * time.Millisecond)
		}
		if got := reads.Load(); got < 2 || got > 7 {
			t.Errorf("read %d times in a minute, of a second each", got)
		}
		cancel()
		<-ended
	})
}
