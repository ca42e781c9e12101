package agent

import (
	"log/slog"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/certificate"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/machine/origin"
)

// Finder finds the cgroups that are tasks.
type Finder interface {
	// Find lists all of them. fresh is false if nothing can have changed since the last
	// call; then found is empty.
	Find(now time.Time) (found []Found, fresh bool, err error)
	Open(Found) (Cgroup, error)
	// Unwatched is why changes are found by walking periodically; nil if the kernel
	// reports them.
	Unwatched() error
	// Unread are the cgroups that Find has left out because they cannot be read.
	Unread() host.Unread
	// Unnamed is why names of tasks cannot be read; nil if they can.
	Unnamed() error
	// Wait returns a function that blocks until Find may report a change, or until
	// waiting fails. The function is called in another goroutine. It is nil if changes
	// are not reported.
	Wait() func() error
}

// Found is a cgroup that a rule makes a task.
type Found struct {
	Hierarchy sample.Hierarchy
	Path      string
	Inode     uint64
	config.Verdict
	Facts *origin.Facts // what is known of it; nil: nothing
	// Own: the agent runs in this cgroup; it is never capped.
	Own bool
}

// Labels are what is known of it, for people.
func (f *Found) Labels() map[string]string {
	if f.Facts == nil {
		return nil
	}
	return f.Facts.Labels
}

// Namer finds out where cgroups come from; *origin.Names is one. Its methods do not wait.
type Namer interface {
	// Facts returns what is known, and whether more is not to be expected soon.
	Facts(at host.Place, inode uint64) (f origin.Facts, settled bool)
	// Changed reports whether an answer of Facts has changed since the last call.
	Changed() bool
	Forget(at host.Place, inode uint64)
	// Err is why names cannot be read now; nil if they can.
	Err() error
}

// Cgroup is one task's cgroup; *host.Cgroup is one.
type Cgroup interface {
	Dir() string
	Members() ([]int, error)
	Below() ([]uint64, error)
	Usage() (host.Usage, error)
	// Tally is the CPU time since its first call, where Usage gives host.ErrNoUsage.
	Tally() (time.Duration, error)
	// CPUTime returns a function that reads the CPU time of Usage, from any goroutine.
	CPUTime() func() (time.Duration, error)
	// Stalled is how long at least one thread has waited for a resource ("cpu").
	Stalled(resource string) (time.Duration, error)
	Places() (host.Places, error)
	IOPlace() (string, error)
	AllowedCPUs() (sample.Set, error)
	Threads() (int, error)
	// KeepOpen sets whether the files that Usage reads stay open from one reading to the
	// next; Files is how many are open.
	KeepOpen(yes bool) error
	OpenFiles() int
	Close() error
}

// Enforcer makes changes and undoes them; *enforce.Enforcer is one.
type Enforcer interface {
	Apply(now sample.Millis, c enforce.Change) error
	Undo(now sample.Millis, id, why string) (enforce.Outcome, error)
	Active() []enforce.Change
	Due(now sample.Millis) []string
	Check() []string
	// Stuck returns the changes that could not be undone; Due tells when to retry.
	Stuck() []enforce.FailedUndo
	// Err is why the journal cannot be written, so that no cap can be set; nil if it can.
	Err() error
	RestoreAll(now sample.Millis, why string) ([]enforce.Outcome, error)
}

// Machine is what the agent needs of the machine as a whole; *host.Host is one.
type Machine interface {
	// ReadAccounts reads usage and pressure of all tasks at once, where that is possible. Until
	// EndAccounts, Cgroup.Usage and Stalled return that. After an error they read files.
	ReadAccounts() error
	EndAccounts()
	CPUTimes() (host.CPUTimes, error)
	CapWrites(cpuPath string, rate float64, period time.Duration) (dir string, inode uint64, w []host.Write, err error)
	// IOLimit and IOWrites apply to the path that Cgroup.IOPlace returns.
	IOLimit(ioPath string, dev host.Device) (host.IOLimit, error)
	IOWrites(ioPath string, dev host.Device, limit host.IOLimit) (dir string, inode uint64, w []host.Write, err error)
	// Online returns the CPUs that are online now. If they differ from those of the
	// known topology, Topology is read again.
	Online() (sample.Set, error)
	Topology() (host.Topology, error)
	// Throttled is how long a cgroup was throttled by its own quota; an error if it has
	// none.
	Throttled(cpuPath string) (time.Duration, error)
	// Weight is a cgroup's CPU weight relative to its siblings; an error if it has none.
	Weight(cpuPath string) (float64, error)
}

// Uplink is the connection to a server; *bus.Uplink is one. Its methods do not block:
// the loop continues whatever happens to the server.
type Uplink interface {
	// Samples takes the samples of one window; it does not keep the slice.
	Samples(at sample.Millis, samples []sample.Sample)
	// Record takes an incident or audit entry, as JSON.
	Record(at sample.Millis, kind wire.Record_Kind, id string, document []byte)
	// WatchSpecs sets the jobs whose specs are wanted from now on.
	WatchSpecs(platform sample.Platform, jobs []sample.JobName)
	// Specs returns the specs that have arrived since the last call.
	Specs() []spec.Spec
	// Decisions returns what the server has decided for this machine and for all.
	Decisions() []*wire.Command
	// Report takes what has become of them; s is not changed afterwards.
	Report(s *wire.State)
	// Backlog is how many messages wait for the server, and how many were lost.
	Backlog() (waiting, lost uint64)
	// Err is the current failure of the connection; nil if it works.
	Err() error
	// Expires is when the credentials expire, zero if never, and why they need attention.
	Expires(now time.Time) (at time.Time, due error)
}

// Parts are the components of an agent. The caller closes the sources and Enforcer after Run.
type Parts struct {
	Config   *config.Agent
	Version  string
	Platform sample.Platform
	Topology host.Topology
	Machine  Machine
	Finder   Finder
	Sources  []counter.Source
	// MachineSources measure the machine; their signals are judged after those of Sources.
	MachineSources []counter.MachineSource
	// SharedDisks returns the disks that two tasks have both used; nil if that is not known.
	SharedDisks func(a, b sample.TaskKey) []host.Device
	Enforcer    Enforcer
	// NetWrites lists the writes that limit the cgroup (v2) in a directory to
	// bytesPerSecond; nil if that is not possible.
	NetWrites func(dir string, bytesPerSecond uint64) []host.Write
	// Signals holds the status of every signal that was requested.
	Signals []api.SignalStatus
	// Usage says, for people, how usage and pressure of tasks are read.
	Usage string
	Log   *slog.Logger
	// Descriptors returns how many file descriptors the process has open and its limit;
	// nil if there is no limit.
	Descriptors func() (open, limit int, err error)
	// Record receives every sample; nil if samples are not recorded.
	Record func(*sample.Sample) error
	// Uplink is the connection to the server; nil for none.
	Uplink Uplink
	// Certificates are those of the Uplink; nil for none.
	Certificates *certificate.Files
	// Random returns numbers in [0, 1) that no task can foresee. With it windows open at
	// random moments; nil: at the beginning of each period.
	Random func() float64
}
