package sample

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// Names of any bytes are printed safely, and survive being written down.
func TestNamesOfAnyBytes(t *testing.T) {
	for _, c := range []struct{ name, text, printed string }{
		{"/a/b", "/a/b", "/a/b"},
		{`/machine.slice/machine-qemu\x2d7\x2dweb.scope`, `/machine.slice/machine-qemu\x2d7\x2dweb.scope`, `/machine.slice/machine-qemu\x2d7\x2dweb.scope`},
		{"/Zürich büro", "/Zürich büro", "/Zürich büro"},
		{"/a\xffb", `"/a\xffb"`, `"/a\xffb"`},
		{"/a\x1b[2Jb", "/a\x1b[2Jb", `"/a\x1b[2Jb"`},
		{"/a\u202eb", "/a\u202eb", `"/a\u202eb"`},
		{`"quoted"`, `"\"quoted\""`, `"\"quoted\""`},
		{"", "", ""},
	} {
		n := TaskName(c.name)
		if n.Text() != c.text || n.String() != c.printed || fmt.Sprintf("%s %v", n, JobName(n)) != c.printed+" "+c.printed {
			t.Errorf("%q: text %s, printed %s", c.name, n.Text(), n)
		}
		document, err := json.Marshal(map[string]TaskName{"task": n})
		if err != nil {
			t.Fatal(err)
		}
		var back map[string]TaskName
		if err := json.Unmarshal(document, &back); err != nil || back["task"] != n {
			t.Errorf("%q: %s is read as %q, %v", c.name, document, string(back["task"]), err)
		}
		if again, err := ParseName(n.String()); err != nil || again != c.name {
			t.Errorf("%q: %s is read as %q, %v", c.name, n, again, err)
		}
	}
	for _, bad := range []string{`"`, `"/a`, `"/a"b`, `"\q"`} {
		if got, err := ParseName(bad); err == nil || !strings.Contains(err.Error(), "quoted as in Go") {
			t.Errorf("%s: read as %q, %v", bad, got, err)
		}
	}
}

// FuzzParseName: every name has a text form that is UTF-8 and is read back, and no text makes it
// panic.
func FuzzParseName(f *testing.F) {
	for _, s := range []string{"/a", "/a\xff", `"/a"`, `"`, "\x1b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, text := range []string{TaskName(s).Text(), TaskName(s).String()} {
			if back, err := ParseName(text); err != nil || back != s || !utf8.ValidString(text) {
				t.Errorf("%q: %q is read as %q, %v", s, text, back, err)
			}
		}
		if name, err := ParseName(s); err == nil && s != "" && s[0] != '"' && name != s {
			t.Errorf("%q is read as %q", s, name)
		}
	})
}

// A task answers to its name, its path, the ends of both, and twelve characters of a container's id.
func TestIsNamed(t *testing.T) {
	const id = "4b1c0e6f2a7d3958e1f0a9b8c7d6e5f40123456789abcdef0123456789abcdef"
	pod := &Task{Name: "shop/web-0/app", Cgroup: "/kubepods.slice/x.slice/cri-containerd-" + id + ".scope"}
	plain := &Task{Name: "/batch/job-1"}
	for _, c := range []struct {
		task *Task
		text string
		want bool
	}{
		{pod, "shop/web-0/app", true}, {pod, "web-0/app", true}, {pod, "app", true}, {pod, "/app", true}, {pod, string(pod.Cgroup), true},
		{pod, id[:12], true}, {pod, id, true}, {pod, id + "0", false}, {pod, id[:11], false}, {pod, id[1:20], false}, {pod, "web-0", false}, {pod, "", false},
		{plain, "/batch/job-1", true}, {plain, "job-1", true}, {plain, "batch/job-1", true}, {plain, "ob-1", false}, {plain, "/", false},
	} {
		if got := c.task.IsNamed(c.text); got != c.want {
			t.Errorf("%s, named %q: %v", c.task.Name, c.text, got)
		}
	}
	for path, want := range map[string]string{
		"/docker/" + id: id, "/a/docker-" + id + ".scope": id, "/a/x.slice:cri-containerd:" + id: id, "/a/libpod-conmon-" + id: "",
		"/a/" + id[:12]: id[:12], "/a/" + id[:11]: "", "/a/nginx.service": "", "": "", "/": "", "/" + id + "/b": "",
	} {
		if got := ContainerID(path); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// What contains what is a matter of paths, whatever the names.
func TestContains(t *testing.T) {
	outer := &Task{Name: "user-1000/user@1000.service", Cgroup: "/user.slice/u"}
	for _, c := range []struct {
		inner Task
		want  bool
	}{
		{Task{Name: "a.service", Cgroup: "/user.slice/u/a.service"}, true},
		{Task{Name: "/user.slice/u/a"}, true},
		{Task{Name: "/user.slice/ua"}, false},
		{Task{Name: "/user.slice/u"}, false},
		{Task{Name: "user-1000/user@1000.service/a", Cgroup: "/x"}, false},
		{Task{Name: "/user.slice/u/a", Key: TaskKey{Hierarchy: V1CPU}}, false},
	} {
		if got := outer.Contains(&c.inner); got != c.want {
			t.Errorf("%+v: %v", c.inner, got)
		}
	}
}
