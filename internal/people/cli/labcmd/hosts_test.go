package labcmd

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/helper"
	"github.com/quell-dev/quell/internal/lab/remote"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

// The verdict on a host depends on the kind of error, not on its text.
func TestVerdictsOfHosts(t *testing.T) {
	facts := &remote.Facts{System: "Linux"}
	lost := fmt.Errorf("begin: %w", &remote.LostError{Host: "h1"})
	for _, c := range []struct {
		name  string
		facts *remote.Facts
		err   error
		want  string
	}{
		{"well", facts, nil, hostOK},
		{"its command failed", facts, errors.New("exit status 1"), hostFailed},
		{"not let in", nil, errors.New("connection refused"), hostNone},
		{"cut off", facts, lost, hostLost},
		{"cut off while another thing failed", facts, errors.Join(errors.New("x"), lost), hostLost},
		{"another key", nil, &remote.KeyError{Host: "h1", Known: true}, hostUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := hostView{Facts: c.facts}
			v.judge(c.err)
			if v.Verdict != c.want || (v.Why == "") != (c.err == nil) {
				t.Errorf("%+v, want %s", v, c.want)
			}
		})
	}
}

// TestHostsThatAreNotThere: an unreachable host is reported with the others' verdicts,
// and the barrier does not wait for it.
func TestHostsThatAreNotThere(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "hosts.yaml")
	text := "hosts:\n  h1: {address: \"127.0.0.1:1\", key: " + dir + "/none}\n  h2: {address: \"127.0.0.1:1\", key: " + dir + "/none}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", file}, {"run", file, "--", "true"}} {
		r := quell(t, clitest.Env(""), append([]string{"lab", "hosts", args[0], "--json"}, args[1:]...)...)
		var said struct {
			Hosts []hostView `json:"hosts"`
		}
		if bad := json.Unmarshal([]byte(r.Out), &said); bad != nil {
			t.Fatalf("%v in %s", bad, r.Out)
		}
		if r.Code != app.ExitNegative || !strings.Contains(r.Err, "2 of 2 hosts are not ok") || len(said.Hosts) != 2 ||
			said.Hosts[0].Verdict != hostNone || said.Hosts[1].Host != "h2" {
			t.Errorf("%v: %v, %+v", args, r, said)
		}
	}
}

// sshd drops logins at random when ten have begun, and the hosts of a cloud are all behind one gate.
func TestFewLoginsAtOnce(t *testing.T) {
	dir := t.TempDir()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	gate, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	text := "hosts:\n"
	for i := range 2 * mostLogins {
		text += fmt.Sprintf("  h%d: {address: %q, key: %s/key}\n", i, gate.Addr().String(), dir)
	}
	if err := os.WriteFile(dir+"/hosts.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var f hostSelection
	if err := f.read(dir + "/hosts.yaml"); err != nil {
		t.Fatal(err)
	}
	done := make(chan []error, 1)
	go func() {
		done <- f.parallel(func(i int) error {
			_, err := f.dial(t.Context(), i)
			return err
		})
	}()
	for range 2 {
		var begun []net.Conn
		for range mostLogins {
			c, err := gate.Accept()
			if err != nil {
				t.Fatal(err)
			}
			begun = append(begun, c)
		}
		if err := gate.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if c, err := gate.Accept(); err == nil {
			t.Fatalf("%v is one too many", c.RemoteAddr())
		}
		if err := gate.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		for _, c := range begun {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if errs := <-done; len(errs) != 2*mostLogins || errors.Join(errs...) == nil {
		t.Errorf("%v", errs)
	}
}

// A client on another host cannot know the address of the lab's machine unless the inventory has
// it: the study's name for that machine is none.
func TestAskingTheLabsMachine(t *testing.T) {
	s, err := study.Parse("t.yaml", []byte(`version: 1
study: t
hosts: {local: {}, h1: {address: "root@10.0.0.1"}}
environments: {ve: {driver: cgroup}}
workloads:
  send: {command: [iperf3, -c, "{asks}"], iterations: 1, metric: {parse: iperf3}}
  receive: {command: [iperf3, -s], serves: 5201}
roles:
  client: {workload: send, environment: ve, host: h1, asks: server, measure: true}
  server: {workload: receive, environment: ve, host: local}
controls: {solo: false}
`), known())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "hosts.yaml")
	cell := s.Cells()[0]
	for text, want := range map[string]string{
		"":                        "",
		"h1: {address: 10.0.0.1}": "",
		"h1: {address: 10.0.0.1}, local: {address: \"10.0.0.9:22\"}": "10.0.0.9",
	} {
		o := runOptions{}
		if text != "" {
			o.hosts = file
			if err := os.WriteFile(file, []byte("hosts: {"+text+"}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		far, err := hostsOf(s, o)
		if err != nil {
			t.Fatal(err)
		}
		err = far.refuse(&cell)
		if lack, ok := errors.AsType[*lab.LackError](err); want == "" && (!ok || !strings.Contains(lack.What, "whose address is not known") || lack.Remedy == "") || want != "" && err != nil {
			t.Errorf("%s: %v", text, err)
		}
		asks := ""
		_, _ = far.addressed(func(_ *study.Cell, p *study.Part) (lab.Job, error) { asks = p.Asks; return lab.Job{}, nil })(&cell, &cell.Parts[0])
		if want != "" && asks != want {
			t.Errorf("%s: it asks %s", text, asks)
		}
	}
}

// The process numbers of another host are those of other processes here: a load there is never
// held by signals from here.
func TestSignalsStayOnTheirMachine(t *testing.T) {
	s, err := study.Parse("t.yaml", []byte(`version: 1
study: t
hosts: {local: {}, h1: {address: "root@10.0.0.1"}}
environments: {ve: {driver: cgroup, cpus: 1}}
workloads: {work: {builtin: primes}}
roles: {fg: {workload: work, environment: ve, host: h1, measure: true, load: {target: 50%, actuator: sigstop}}}
controls: {solo: false}
run: {for: 1s}
`), known())
	if err != nil {
		t.Fatal(err)
	}
	far, err := hostsOf(s, runOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cell := s.Cells()[0]
	held := (&labMachine{}).hold(t.Context(), &helper.Environment{}, 1, &cell.Parts[0], nil, nil)
	for _, err := range []error{far.refuse(&cell), held} {
		if lack, ok := errors.AsType[*lab.LackError](err); !ok || !strings.Contains(lack.What, "SIGSTOP") || lack.Remedy == "" {
			t.Errorf("%v", err)
		}
	}
}

// A study whose roles are all on other hosts makes nothing here: its controller needs no root, whose keys
// and cloud credentials are not the user's.
func TestDriversHere(t *testing.T) {
	for host, want := range map[string][]study.Driver{"h1": nil, "local": {study.Bare}} {
		s, err := study.Parse("t.yaml", []byte(`version: 1
study: t
hosts: {local: {}, h1: {address: "root@10.0.0.1"}}
environments: {ve: {driver: host, cpus: 1}}
workloads: {work: {builtin: primes}}
roles: {fg: {workload: work, environment: ve, host: `+host+`, measure: true}}
controls: {solo: false}
run: {for: 1s}
`), known())
		if err != nil {
			t.Fatal(err)
		}
		if got := driversHere(s); !slices.Equal(got, want) {
			t.Errorf("on %s: %v, want %v", host, got, want)
		}
	}
}

// The study's networks are on the lab's machine: a container on one of them that is to be on
// another host would be made here, and recorded as that host's.
func TestNetworksAreOfTheLabsMachine(t *testing.T) {
	for host, want := range map[string]string{"h1": "role fg is on host h1, and network lan is on the lab's machine", "local": ""} {
		s, err := study.Parse("t.yaml", []byte(`version: 1
study: t
hosts: {local: {}, h1: {address: "root@10.0.0.1"}}
networks: {lan: {}}
environments: {ve: {driver: lxc, network: lan}}
workloads: {work: {builtin: primes}}
roles: {fg: {workload: work, environment: ve, host: `+host+`, measure: true}}
controls: {solo: false}
run: {for: 1s}
`), known())
		if err != nil {
			t.Fatal(err)
		}
		far, err := hostsOf(s, runOptions{})
		if err != nil {
			t.Fatal(err)
		}
		cell := s.Cells()[0]
		err = far.refuse(&cell)
		if lack, ok := errors.AsType[*lab.LackError](err); want == "" && err != nil || want != "" && (!ok || lack.What != want || lack.Remedy == "") {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// Another inventory may give a host's name to another machine: its runs are not mixed with those of the first. Another
// environment may be elsewhere, as sizes are that are rented one after another, and so may hosts that are switched on anew.
func TestAnotherMachineOfThatName(t *testing.T) {
	run := func(verdict result.Verdict, host, environment, machine string) result.Run {
		p := study.Part{Host: host, Environment: study.Environment{Name: environment}}
		return result.Run{Verdict: verdict, Cell: study.Cell{Parts: []study.Part{p}}, Hosts: []result.Host{{Name: host, Machine: machine}}}
	}
	runs := []result.Run{run(result.Valid, "h1", "large", "a"), run(result.Invalid, "h1", "small", "a"), run(result.Valid, "nb1", "large", "a")}
	far := &remoteMaker{study: &study.Study{Hosts: map[string]study.Host{"h1": {}, "nb1": {Power: true}}}, were: result.Machines(runs, "", nil)}
	for _, c := range []struct {
		host, environment, machine string
		refused                    bool
	}{
		{"h1", "large", "a", false},
		{"h1", "large", "b", true},
		{"h1", "large", "", false}, // nothing is known of it
		{"h1", "small", "b", false},
		{"nb1", "large", "b", false},
	} {
		err := far.same(&study.Part{Host: c.host, Environment: study.Environment{Name: c.environment}}, c.machine)
		if lack, ok := errors.AsType[*lab.LackError](err); ok != c.refused || ok && (!strings.Contains(lack.What, "another machine") || lack.Remedy == "") || err != nil && !ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if other := result.Machines(runs, "another series", nil); len(other) > 0 {
		t.Errorf("%v", other)
	}
}
