package workload

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/machine/chase"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Kernel is a workload of the lab: each of its threads does equal pieces of work, one
// after the other, and reports for each its begin, its end and its number of units. The
// measured quantity is the time of a piece, so its size is given and never calibrated.
type Kernel struct {
	Name string
	// Threads 0 means one for each CPU that the process may use when it starts.
	Threads int
	// Work is the number of units in an iteration.
	Work int
	// Set is the working set of each thread, bytes: for triad all three arrays (0: each
	// four times the last-level cache, at least 32 MiB, as STREAM's rules require), for
	// chase the chain, for read the file.
	Set int64
	// Block is the size of a read in bytes; Dir is a folder on the disk to read.
	Block int64
	Dir   string
	// Pause is the mean time between two bursts; each pause is random (Seed) in 50 to 150
	// % of it.
	Pause time.Duration
	Seed  uint64
}

// kernels are the lab's workloads. The unit of each is in its comment.
var kernels = []Kernel{
	{Name: "cpu-burn", Work: 50_000_000},                                      // a floating-point addition that depends on the previous one
	{Name: "primes", Work: 50},                                                // an event of sysbench cpu: all primes up to 10,000
	{Name: "triad", Work: 1},                                                  // a byte that STREAM counts; Work counts sweeps
	{Name: "chase", Work: 1_000_000, Set: 8 << 20, Seed: 1},                   // a dependent load
	{Name: "syscall", Work: 100_000},                                          // a system call
	{Name: "burst", Work: 50_000_000, Pause: 100 * time.Millisecond, Seed: 1}, // a step of compute
	{Name: "idle"}, // nothing

	// a read from a disk, past the page cache
	{Name: "read", Work: 20, Set: 16 << 20, Block: 4 << 10, Dir: "/var/tmp", Seed: 1},
}

// KernelNames are the names of the lab's workloads.
func KernelNames() []string {
	names := make([]string, len(kernels))
	for i, k := range kernels {
		names[i] = k.Name
	}
	return names
}

// ParseKernel reads "NAME -flag=value …".
func ParseKernel(args []string) (Kernel, error) {
	if len(args) == 0 {
		return Kernel{}, fmt.Errorf("parse workload: want one of %s", strings.Join(KernelNames(), ", "))
	}
	i := slices.IndexFunc(kernels, func(k Kernel) bool { return k.Name == args[0] })
	if i < 0 {
		return Kernel{}, fmt.Errorf("parse workload %q: want one of %s", args[0], strings.Join(KernelNames(), ", "))
	}
	k := kernels[i]
	f := k.flags()
	if err := f.Parse(args[1:]); err != nil {
		return Kernel{}, fmt.Errorf("parse workload %s: %w", k.Name, err)
	}
	if f.NArg() > 0 {
		return Kernel{}, fmt.Errorf("parse workload %s: unexpected %q", k.Name, f.Arg(0))
	}
	return k, k.Validate()
}

// flags binds the fields that the kernel has, those that are not 0 by default.
func (k *Kernel) flags() *flag.FlagSet {
	f := flag.NewFlagSet(k.Name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.IntVar(&k.Threads, "threads", k.Threads, "threads; 0: one per available CPU")
	if k.Work > 0 {
		f.IntVar(&k.Work, "work", k.Work, "units of work in an iteration")
	}
	if k.Set > 0 || k.Name == "triad" {
		f.Func("set", "working set of a thread, e.g. 8MiB", func(text string) (err error) {
			k.Set, err = parseSize(text)
			return err
		})
	}
	if k.Block > 0 {
		f.Func("block", "bytes of a read, e.g. 64KiB", func(text string) (err error) {
			k.Block, err = parseSize(text)
			return err
		})
		f.StringVar(&k.Dir, "dir", k.Dir, "folder on the disk that is read")
	}
	if k.Pause > 0 {
		f.DurationVar(&k.Pause, "pause", k.Pause, "mean time between bursts")
	}
	if k.Seed > 0 {
		f.Uint64Var(&k.Seed, "seed", k.Seed, "random seed")
	}
	return f
}

// parseSize reads "64KiB", "8MiB", "1GiB" or bytes.
func parseSize(text string) (int64, error) {
	shift := 0
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if number, ok := strings.CutSuffix(text, unit); ok {
			text, shift = number, 10*(i+1)
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > 1<<36>>shift {
		return 0, errors.New("want a size such as 8MiB, at most 64GiB")
	}
	return n << shift, nil
}

// Validate returns every error in k, joined.
func (k Kernel) Validate() error {
	var all []error
	bad := func(field string, value any, want string) {
		all = append(all, fmt.Errorf("workload %s: -%s %v: want %s", k.Name, field, value, want))
	}
	if k.Threads < 0 || k.Threads > 4096 {
		bad("threads", k.Threads, "0 to 4096")
	}
	if k.Name != "idle" && (k.Work < 1 || k.Work > 1<<40) {
		bad("work", k.Work, "1 or more")
	}
	least := map[string]int64{"chase": 2 * chase.Line, "triad": 3 * 8}[k.Name]
	if k.Set < least && !(k.Name == "triad" && k.Set == 0) {
		bad("set", k.Set, fmt.Sprintf("at least %d bytes", least))
	}
	if k.Name == "read" && (k.Block < 512 || k.Block%512 != 0 || k.Block > k.Set) {
		bad("block", k.Block, "a multiple of 512 bytes, at most the working set (-set)")
	}
	if k.Pause < 0 || k.Pause > longest {
		bad("pause", k.Pause, "0s to "+longest.String())
	}
	return errors.Join(all...)
}

// RunKernel plays k in this process. It prepares its memory and files, waits for a line
// on standard input, and then works until standard input closes or ctx ends; both are a
// normal end. It prints iterations as lines
//
//	quell-lab iteration FROM TO UNITS
//
// on standard output. The times are CLOCK_MONOTONIC in ns, in the order of the ends.
// Units are also counted in the file $QUELL_PROGRESS.
func RunKernel(ctx context.Context, k Kernel) error {
	return runKernel(ctx, k, os.Stdin, os.Stdout, os.Getenv(ProgressEnv))
}

func runKernel(ctx context.Context, k Kernel, in io.Reader, out io.Writer, path string) (err error) {
	if err := k.Validate(); err != nil {
		return err
	}
	if k.Threads == 0 {
		set, err := host.Affinity(0)
		if err != nil {
			return fmt.Errorf("count CPUs: %w", err)
		}
		k.Threads = set.Len()
	}
	runtime.GOMAXPROCS(max(k.Threads, runtime.GOMAXPROCS(0)))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &kernelRun{ctx: ctx, out: out}
	if b.progress, err = openProgress(path); err != nil {
		return err
	}
	defer b.progress.Close()
	context.AfterFunc(ctx, func() { b.stop.Store(true) })

	var ready, done sync.WaitGroup
	began := make(chan struct{})
	for n := range k.Threads {
		ready.Add(1)
		done.Go(func() {
			// A thread that still prepares must not run in parallel with threads that
			// work.
			runtime.LockOSThread()
			piece, free, err := b.prepare(k, uint64(n))
			defer free()
			if err != nil {
				b.fail(err)
			}
			ready.Done()
			select {
			case <-began:
			case <-ctx.Done():
				return // stop may be set a moment later
			}
			for !b.stop.Load() {
				if err := b.iterate(piece); err != nil {
					b.fail(err)
				}
			}
		})
	}
	ready.Wait()
	shortenSlices()
	begun, end, ok := role.Barrier(ctx, in)
	defer end()
	context.AfterFunc(begun, cancel) // standard input has closed
	if ok {
		close(began)
	}
	done.Wait()
	return b.err
}

// kernelRun is the shared state of a kernel's threads.
type kernelRun struct {
	ctx      context.Context
	stop     atomic.Bool
	mu       sync.Mutex
	out      io.Writer
	text     []byte
	progress *progress
	err      error
}

// fail ends all threads.
func (b *kernelRun) fail(err error) {
	b.mu.Lock()
	b.err = errors.Join(b.err, err)
	b.mu.Unlock()
	b.stop.Store(true)
}

// piece does one iteration's work and returns its units, 0 for an iteration that does not
// count.
type piece func() (units float64)

func (b *kernelRun) iterate(p piece) error {
	from := monotonic()
	units := p()
	b.mu.Lock()
	defer b.mu.Unlock()
	// The end time is taken under the lock, so that lines are in its order.
	to := monotonic()
	if units == 0 || b.stop.Load() {
		return nil
	}
	b.text = append(b.text[:0], role.IterationLine...)
	b.text = strconv.AppendInt(b.text, from, 10)
	b.text = append(b.text, ' ')
	b.text = strconv.AppendInt(b.text, to, 10)
	b.text = append(b.text, ' ')
	b.text = strconv.AppendFloat(b.text, units, 'g', -1, 64)
	b.text = append(b.text, '\n')
	if err := b.write(); err != nil {
		return fmt.Errorf("report iteration: %w", err)
	}
	return b.progress.add(uint64(units))
}

// write bypasses the runtime where possible (see raw): a line is far below the size that
// a pipe accepts in one piece.
func (b *kernelRun) write() error {
	f, ok := b.out.(*os.File)
	if !ok {
		_, err := b.out.Write(b.text)
		return err
	}
	for {
		n, errno := raw(unix.SYS_WRITE, f.Fd(), uintptr(unsafe.Pointer(&b.text[0])), uintptr(len(b.text)), 0)
		switch {
		case errno == unix.EINTR || errno == unix.EAGAIN && !b.stop.Load():
		case errno != 0:
			return errno
		case int(n) != len(b.text):
			return io.ErrShortWrite
		default:
			return nil
		}
	}
}

// monotonic is CLOCK_MONOTONIC in ns.
func monotonic() int64 {
	var ts unix.Timespec
	raw(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&ts)), 0, 0)
	return ts.Nano()
}
