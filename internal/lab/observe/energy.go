package observe

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// energy is a source of energy with its readings during the run. Its methods may be
// called on nil.
type energy struct {
	source   string
	zones    []*zone
	meter    *meter
	readings []energyReading // by time, joules since it was opened
}

type energyReading struct {
	at     time.Time
	joules float64
}

// zone is one package's counter of energy (Documentation/power/powercap/powercap.rst), or one
// sensor of power (Documentation/hwmon/acpi_power_meter.rst).
type zone struct {
	host  *host.Host
	file  string
	power bool      // it is in µW
	at    time.Time // of the last reading
	max   uint64    // it wraps after that, in µJ
	last  uint64
	total uint64
}

// ipmitool is the meter of that name: the server's sensor of its input power, by DCMI.
const ipmitool = `while sleep 1; do ipmitool dcmi power reading | sed -n 's/.*Instantaneous power reading: *\([0-9]*\).*/\1/p'; done`

// openEnergy opens the user's meter; where the study wants energy, otherwise the sensor of the
// machine's input power, otherwise RAPL. It returns nil where none is available.
func openEnergy(h *host.Host, o study.Observe) (*energy, error) {
	if o.Meter != "" {
		command := o.Meter
		if command == "ipmitool" {
			command = ipmitool
		}
		m, err := startMeter(command)
		if err != nil {
			return nil, err
		}
		return &energy{source: "meter: " + o.Meter, meter: m}, nil
	}
	if !slices.Contains(o.Sets, "energy") {
		return nil, nil
	}
	if meters := powerMeters(h); len(meters) > 0 {
		return &energy{source: fmt.Sprintf("power meters of hwmon, %d", len(meters)), zones: meters}, nil
	}
	zones := raplZones(h)
	if len(zones) == 0 {
		return nil, nil
	}
	return &energy{source: fmt.Sprintf("RAPL, %d packages only: not memory, disks, fans or power supply", len(zones)), zones: zones}, nil
}

// powerMeters finds ACPI's sensors of the power that a machine takes. Other sensors of hwmon are of
// a part of it.
func powerMeters(h *host.Host) (zones []*zone) {
	for _, dir := range places(h, "/sys/class/hwmon/*") {
		for _, file := range []string{"power1_average", "power1_input"} {
			if name, err := h.ReadValue(dir + "/name"); err != nil || name != "power_meter" {
				continue
			}
			if _, err := readUint(h, dir+"/"+file); err == nil {
				zones = append(zones, &zone{host: h, file: dir + "/" + file, power: true})
				break
			}
		}
	}
	return zones
}

// raplZones finds the packages. Their parts (core, dram) have counters of their own,
// which differ between CPUs, and are left out. A package that is also reached by memory
// (intel-rapl-mmio) has one energy, and counts once.
func raplZones(h *host.Host) []*zone {
	names, err := filepath.Glob(h.Path("/sys/class/powercap") + "/*")
	if err != nil {
		return nil
	}
	byMemory := func(n string) bool { return strings.Contains(path.Base(n), "mmio") }
	slices.SortStableFunc(names, func(a, b string) int { // these last
		if byMemory(a) == byMemory(b) {
			return 0
		} else if byMemory(b) {
			return -1
		}
		return 1
	})
	var zones []*zone
	seen := map[string]bool{}
	for _, n := range names {
		dir := "/sys/class/powercap/" + path.Base(n)
		name, err := h.ReadValue(dir + "/name")
		if err != nil || !strings.HasPrefix(name, "package") || byMemory(n) && seen[name] {
			continue
		}
		z := &zone{host: h, file: dir + "/energy_uj"}
		z.max, _ = readUint(h, dir+"/max_energy_range_uj")
		if z.last, err = readUint(h, z.file); err == nil {
			zones, seen[name] = append(zones, z), true
		}
	}
	return zones
}

func readUint(h *host.Host, file string) (uint64, error) {
	text, err := h.ReadValue(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(text, 10, 64)
}

// read adds the energy since the last reading. A counter may wrap at most once between two
// readings (a wrap takes minutes at any power). Power is that of the time since the last reading.
func (z *zone) read(at time.Time) error {
	now, err := readUint(z.host, z.file)
	if err != nil {
		return err
	}
	if z.power {
		if !z.at.IsZero() {
			z.total += uint64(float64(now) * at.Sub(z.at).Seconds())
		}
		z.at = at
		return nil
	}
	if now >= z.last {
		z.total += now - z.last
	} else {
		z.total += z.max - z.last + now
	}
	z.last = now
	return nil
}

// read records the energy used until now.
func (e *energy) read(at time.Time) {
	if e == nil {
		return
	}
	if e.meter != nil {
		e.readings = e.meter.readings()
		return
	}
	sum := uint64(0)
	for _, z := range e.zones {
		if z.read(at) != nil {
			return
		}
		sum += z.total
	}
	e.readings = append(e.readings, energyReading{at, float64(sum) / 1e6})
}

// total is the energy at the last look.
func (e *energy) total() float64 {
	if e == nil || len(e.readings) == 0 {
		return 0
	}
	return e.readings[len(e.readings)-1].joules
}

// fresh reports whether there are at least two looks.
func (e *energy) fresh() bool { return e != nil && len(e.readings) > 1 }

// mostSilence is the largest distance between an instant and a source's nearest look.
const mostSilence = 5 * time.Second

// between returns the joules between two instants, by interpolation between looks. The
// source is "" where the looks do not cover the interval or are too far apart.
func (e *energy) between(from, to time.Time) (joules float64, source string) {
	if e == nil {
		return 0, ""
	}
	a, ok := e.at(from)
	b, ok2 := e.at(to)
	if !ok || !ok2 {
		return 0, ""
	}
	for i := 1; i < len(e.readings); i++ {
		if l, m := e.readings[i-1].at, e.readings[i].at; m.After(from) && l.Before(to) && m.Sub(l) > 2*mostSilence {
			return 0, ""
		}
	}
	return b - a, e.source
}

func (e *energy) at(t time.Time) (joules float64, ok bool) {
	n := len(e.readings)
	if n < 2 || t.Before(e.readings[0].at.Add(-mostSilence)) || t.After(e.readings[n-1].at.Add(mostSilence)) {
		return 0, false
	}
	i := 1
	for i < n-1 && e.readings[i].at.Before(t) {
		i++
	}
	l, m := e.readings[i-1], e.readings[i]
	if !m.at.After(l.at) {
		return m.joules, true
	}
	return l.joules + (m.joules-l.joules)*t.Sub(l.at).Seconds()/m.at.Sub(l.at).Seconds(), true
}

func (e *energy) close() error {
	if e == nil || e.meter == nil {
		return nil
	}
	return e.meter.stop()
}

// meter is a user's command that prints watts.
type meter struct {
	cmd  *exec.Cmd
	done chan struct{}
	mu   sync.Mutex
	seen []energyReading
}

func startMeter(command string) (*meter, error) {
	cmd := exec.Command("/bin/sh", "-c", command)
	// The shell gets its own process group, so that its children are ended too.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the meter %q: %w", command, err)
	}
	m, started := &meter{cmd: cmd, done: make(chan struct{})}, make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the meter ends
		// (prctl(2), PR_SET_PDEATHSIG), so this goroutine keeps that thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if started <- err; err != nil {
			return
		}
		defer close(m.done)
		m.follow(out, time.Now)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the meter %q: %w", command, err)
	}
	return m, nil
}

// follow reads watts, one value a line. Each value applies to the time since the line
// before, when the meter began to measure it.
func (m *meter) follow(r io.Reader, now func() time.Time) {
	in := bufio.NewScanner(r)
	for in.Scan() {
		watts, err := strconv.ParseFloat(strings.TrimSpace(in.Text()), 64)
		if err != nil || watts < 0 || watts > 1e6 {
			continue
		}
		at := now()
		m.mu.Lock()
		if n := len(m.seen); n == 0 {
			m.seen = append(m.seen, energyReading{at: at})
		} else {
			last := m.seen[n-1]
			m.seen = append(m.seen, energyReading{at, last.joules + watts*at.Sub(last.at).Seconds()})
		}
		m.mu.Unlock()
	}
}

func (m *meter) readings() []energyReading {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.seen)
}

func (m *meter) stop() error {
	err := syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL)
	<-m.done
	// The process ends by our signal or ended before; neither is an error.
	_ = m.cmd.Wait()
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop the meter: %w", err)
	}
	return nil
}
