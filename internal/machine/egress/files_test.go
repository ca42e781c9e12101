package egress

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	quelltest.Main(m)
}

// files returns the machine's files and the directory of a cgroup made for the test.
func files(t *testing.T) (f *Files, dir string) {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(h.Layout().Unified, fmt.Sprintf("quell-test-egress-%d", os.Getpid()))
	quelltest.MakeCgroup(t, dir)
	f = NewFiles(h)
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f, dir
}

func read(t *testing.T, f *Files, file string) string {
	t.Helper()
	v, err := f.ReadValue(file)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// The file behaves as the journal expects a kernel file to behave.
func TestNetMaxIsLikeAFile(t *testing.T) {
	f, dir := files(t)
	file := filepath.Join(dir, Name)
	if v := read(t, f, file); v != None {
		t.Errorf("at first it reads %q", v)
	}
	w := Writes(dir, 1<<20)
	if len(w) != 1 || w[0].File != file || w[0].Old != None || w[0].New != "1048576" {
		t.Fatalf("writes %+v", w)
	}
	for _, value := range []string{"1048576", "2097152", None, None} {
		if err := f.WriteValue(file, value); err != nil {
			t.Fatal(err)
		}
		if v := read(t, f, file); v != value {
			t.Errorf("it reads %q after writing %q", v, value)
		}
	}
	if err := f.WriteValue(file, "1048576"); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "0", "-1", "1023", strconv.FormatUint(maxRate+1, 10), "1M"} {
		if err := f.WriteValue(file, bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if v := read(t, f, file); v != "1048576" {
		t.Errorf("after what was refused it reads %q", v)
	}
	// Another process's limit is not seen: it ends with that process.
	if v := read(t, NewFiles(f.Files), file); v != None {
		t.Errorf("another process reads %q", v)
	}
	if _, err := f.ReadValue(filepath.Join(dir, "cgroup.procs")); err != nil {
		t.Errorf("a real file: %v", err)
	}
}

func TestNetMaxOfACgroupThatIsGone(t *testing.T) {
	f, dir := files(t)
	file := filepath.Join(dir, Name)
	if err := f.WriteValue(file, "1048576"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadValue(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading: %v", err)
	}
	if err := f.WriteValue(file, None); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("writing: %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if v := read(t, f, file); v != None {
		t.Errorf("of another cgroup at its place it reads %q", v)
	}
}

func TestNoLimitOutsideCgroup2(t *testing.T) {
	f, _ := files(t)
	dir := t.TempDir()
	if err := f.WriteValue(filepath.Join(dir, Name), "1048576"); !errors.Is(err, ErrNoLimit) {
		t.Errorf("in a directory that is no cgroup: %v", err)
	}
}

// A cgroup's sending is limited from the first packet on, except to lo, and
// only as long as the limit is renewed.
func TestSendingIsHeld(t *testing.T) {
	f, dir := files(t)
	file := filepath.Join(dir, Name)
	send := sender(t, dir)
	const limit = 64 << 10 // per second; so little that sending at this rate takes half a minute
	if err := f.WriteValue(file, strconv.Itoa(limit)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	const packets, size = 2000, 1000
	send(packets, size)
	stats := func() (passed, dropped uint64) {
		t.Helper()
		var b egressBucket
		if err := f.held[dir].objs.Buckets.LookupWithFlags(uint32(0), &b, ebpf.LookupLock); err != nil {
			t.Fatal(err)
		}
		return b.Passed, b.Dropped
	}
	passed, dropped := stats()
	// An eighth of a second's worth passes at once, then what the rate allows.
	most := uint64(limit * (0.125 + time.Since(began).Seconds()))
	if total := passed + dropped; total < packets*size || dropped == 0 || passed == 0 || passed > most+2*size {
		t.Errorf("%d bytes passed, %d were dropped, of %d; %d may pass", passed, dropped, packets*size, most)
	}
	// The limit has not been read for longer than Grace.
	if err := f.held[dir].objs.Until.Set(uint64(host.Monotonic()) - 1); err != nil {
		t.Fatal(err)
	}
	send(packets, size)
	if p, d := stats(); p != passed || d != dropped {
		t.Errorf("beyond its end the limit counts %d and %d, was %d and %d", p, d, passed, dropped)
	}
	if v := read(t, f, file); v != strconv.Itoa(limit) { // reading renews the limit
		t.Errorf("it reads %q", v)
	}
	send(packets, size)
	if _, d := stats(); d <= dropped {
		t.Errorf("looked after again it dropped %d more", d-dropped)
	}
}

// The bucket gets what the rate gives, however often and in whichever order packets come: a task that
// sends more packets than its rate has bytes gets its rate, and CPUs whose readings of the clock differ
// count no time twice.
func TestTheRateIsExact(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF)
	var objs egressObjects
	if err := loadEgressObjects(&objs, nil); err != nil {
		t.Fatal(err)
	}
	defer objs.Close()
	if err := objs.Until.Set(uint64(math.MaxUint64)); err != nil {
		t.Fatal(err)
	}
	// The beginning of struct __sk_buff, with an interface that is not lo.
	var packet struct {
		_       [10]uint32
		Ifindex uint32
	}
	all, err := net.Interfaces()
	for _, i := range all {
		if i.Index > 1 {
			packet.Ifindex = uint32(i.Index)
		}
	}
	if packet.Ifindex == 0 {
		quelltest.Skip(t, "ip", errors.Join(errors.New("no interface but lo"), err))
	}
	const rate, second, hour = 1 << 10, uint64(time.Second), uint64(time.Hour)
	send := func(b egressBucket, packets uint32) egressBucket {
		t.Helper()
		b.Rate = rate
		if err := objs.Buckets.Put(uint32(0), &b); err != nil {
			t.Fatal(err)
		}
		if _, err := objs.Limit.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: packets, Context: &packet}); err != nil {
			t.Fatal(err)
		}
		if err := objs.Buckets.LookupWithFlags(uint32(0), &b, ebpf.LookupLock); err != nil {
			t.Fatal(err)
		}
		return b
	}
	now := uint64(host.Monotonic())

	// What it owes is more than the bucket ever holds, so that nothing passes and it is never full.
	before := egressBucket{Seen: now - second, Tokens: -1 << 29}
	after := send(before, 200_000)
	counted := float64(after.Seen-before.Seen) / float64(second) * rate
	if got := float64(after.Tokens - before.Tokens); got < rate || math.Abs(got-counted) > 1 || after.Passed != 0 {
		t.Errorf("%v bytes for a time that is worth %v; %d passed", got, counted, after.Passed)
	}

	before = egressBucket{Seen: now + hour}
	if after = send(before, 1); after.Seen != before.Seen || after.Tokens != 0 || after.Dropped == 0 {
		t.Errorf("an older reading of the clock: %+v, was %+v", after, before)
	}

	// Another packet as much later as this machine is up.
	up := now / second
	if after = send(egressBucket{Seen: now - up*second, Tokens: 1 - int64(up*rate)}, 1); after.Passed == 0 {
		t.Errorf("what is owed is paid: %+v", after)
	}
	if after = send(egressBucket{Seen: now - up*second, Tokens: -int64(up*rate) / 2}, 1); after.Passed == 0 || after.Tokens > rate/8 {
		t.Errorf("the bucket is full: %+v", after)
	}
}

// childEnv makes this test binary the child process of sender.
const childEnv = "QUELL_EGRESS_CHILD"

// sender starts a process in the cgroup, in its own network namespace with an
// interface that leads nowhere, and returns a function that makes it send.
func sender(t *testing.T, dir string) func(packets, size int) {
	t.Helper()
	quelltest.Need(t, "ip")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	c := quelltest.StartChild(t, cmd, dir)
	return func(packets, size int) {
		t.Helper()
		if answer := c.Ask(packets, size); answer != "done" {
			t.Fatalf("the sender says %q", answer)
		}
	}
}

// child sends, for each line of its input, that many datagrams of that size.
func child() error {
	for _, words := range []string{"link add e0 type veth peer name e1", "addr add 10.77.0.1/24 dev e0", "link set e0 up", "link set e1 up",
		"neigh add 10.77.0.2 lladdr 02:00:00:00:00:02 dev e0"} {
		if out, err := exec.Command("ip", strings.Fields(words)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", words, err, out)
		}
	}
	conn, err := net.Dial("udp", "10.77.0.2:9")
	if err != nil {
		return err
	}
	defer conn.Close()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var packets, size int
		if _, err := fmt.Sscan(lines.Text(), &packets, &size); err != nil {
			return err
		}
		data := make([]byte, size)
		for range packets {
			_, _ = conn.Write(data) // a full queue may refuse it
		}
		fmt.Println("done")
	}
	return nil
}
