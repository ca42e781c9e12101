package result

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/format/atomicfile"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Lock identifies the study of a folder.
type Lock struct {
	Format  int       `json:"format"` // 1
	Study   string    `json:"study"`
	File    string    `json:"file"` // the study file's text as it was read
	Hash    string    `json:"hash"` // of File
	Program string    `json:"program"`
	Created time.Time `json:"created"`
}

// Folder is a study's results on disk. Several processes may read it while one writes.
type Folder struct{ dir string }

// ErrNoStudy reports that a folder holds no study.
var ErrNoStudy = errors.New("not a study folder: it has no study.lock.json")

const (
	lockFile   = "study.lock.json"
	recordFile = "run.json"
	sampleFile = "samples.jsonl"
)

// Create creates a folder for a study's results, or opens an existing one of the same
// study file. A folder with a run of another study is an error: results are never mixed.
func Create(dir string, l Lock) (*Folder, error) {
	if old, err := Open(dir); err == nil {
		was, err := old.Lock()
		if err != nil {
			return nil, err
		}
		if was.Hash == l.Hash {
			return old, nil
		}
		if free, err := old.discard(was); err != nil {
			return nil, fmt.Errorf("create %s: %w", dir, err)
		} else if !free {
			return nil, fmt.Errorf("create %s: it holds results of an earlier version of study %s; use another folder, or the study file in %s",
				dir, was.Study, lockFile)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "runs"), 0o755); err != nil {
		return nil, fmt.Errorf("create results: %w", err)
	}
	l.Format = 1
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(filepath.Join(dir, lockFile), append(text, '\n'), 0o644); err != nil {
		return nil, fmt.Errorf("create results: %w", err)
	}
	return &Folder{dir}, nil
}

// discard readies a folder without a run for another study file: it removes what quell has made there for the earlier
// one. It reports false if the folder has a run, or if its study is run now.
func (f *Folder) discard(was Lock) (free bool, err error) {
	d, err := os.Open(f.dir)
	if err != nil {
		return false, err
	}
	defer d.Close()
	records, err := f.records()
	if err != nil || len(records) > 0 || syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return false, err
	}
	s, _, err := study.Recorded(lockFile, []byte(was.File), study.Known{})
	if err != nil {
		return true, nil // a file that cannot be read has made nothing
	}
	p := &s.Preconditions
	for name, made := range map[string]bool{"expect.yaml": s.Report.Expect != "", "missed.json": len(p.Require)+len(p.Prefer) > 0, "cost.json": s.Observe.Cost} {
		if !made {
			continue // it may be the user's
		}
		if err := os.Remove(f.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return true, nil
}

// records are the paths of all records, in the folder.
func (f *Folder) records() ([]string, error) {
	return fs.Glob(os.DirFS(f.dir), "runs/*/*/"+recordFile)
}

// Open opens a folder of results; the error wraps ErrNoStudy if it is none.
func Open(dir string) (*Folder, error) {
	if _, err := os.Stat(filepath.Join(dir, lockFile)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open %s: %w", dir, ErrNoStudy)
	} else if err != nil {
		return nil, fmt.Errorf("open results: %w", err)
	}
	return &Folder{dir}, nil
}

// Dir is the folder's path.
func (f *Folder) Dir() string { return f.dir }

// Path is the path of a file in it.
func (f *Folder) Path(elem ...string) string {
	return filepath.Join(append([]string{f.dir}, elem...)...)
}

// Inside makes a folder in a study's, for what is made of its records, and returns its path. A link there is an
// error: the study's folder may be a stranger's.
func Inside(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make folder: %w", err)
	}
	if info, err := os.Lstat(path); err != nil || !info.IsDir() {
		return "", errors.Join(fmt.Errorf("%s is no folder, perhaps a link", path), err)
	}
	return path, nil
}

// Lock returns the folder's lock.
func (f *Folder) Lock() (Lock, error) {
	var l Lock
	err := Load(f.Path(lockFile), &l)
	if err == nil && l.Format != 1 {
		err = fmt.Errorf("open %s: format %d; this quell reads 1", f.dir, l.Format)
	}
	return l, err
}

// Load reads a JSON file.
func Load(path string, v any) error {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// Attempt is a run in progress. It counts as a run only after Finish.
type Attempt struct {
	dir     string
	samples *os.File
	buffer  *bufio.Writer
}

// Begin creates the folder of a run. It removes what an interrupted attempt of the same
// number left there; an attempt with a record is an error.
func (f *Folder) Begin(cellKey string, n, try int) (*Attempt, error) {
	dir := f.Path("runs", cellKey, fmt.Sprintf("%d.%d", n, try))
	if _, err := os.Stat(filepath.Join(dir, recordFile)); err == nil {
		return nil, fmt.Errorf("begin run: %s already has a record", dir)
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, fmt.Errorf("begin run: %w", err)
	}
	s, err := os.Create(filepath.Join(dir, sampleFile))
	if err != nil {
		return nil, fmt.Errorf("begin run: %w", err)
	}
	return &Attempt{dir, s, bufio.NewWriter(s)}, nil
}

// Dir is the run's folder.
func (a *Attempt) Dir() string { return a.dir }

// Create creates a file next to the run's record, e.g. a role's output.
func (a *Attempt) Create(name string) (*os.File, error) {
	return os.Create(filepath.Join(a.dir, filepath.Base(name)))
}

// Sample appends a second of the run.
func (a *Attempt) Sample(s Sample) error {
	line, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write sample: %w", err)
	}
	_, err = a.buffer.Write(append(line, '\n'))
	return err
}

// Finish writes the run's record. After it has returned without an error the run is
// durable; otherwise the run does not count.
func (a *Attempt) Finish(r *Run) error {
	err := errors.Join(a.buffer.Flush(), a.samples.Sync(), a.samples.Close())
	a.samples = nil
	if err != nil {
		return fmt.Errorf("finish run: %w", err)
	}
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("finish run: %w", err)
	}
	// The directory entries that lead to the record, from its own folder to the study's,
	// must be durable before the record.
	for d := filepath.Dir(a.dir); err == nil && filepath.Base(d) != "runs"; d = filepath.Dir(d) {
		err = errors.Join(atomicfile.SyncDir(d), atomicfile.SyncDir(filepath.Dir(d)))
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(a.dir, recordFile), append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("finish run: %w", err)
	}
	return nil
}

// Abandon removes the files of an attempt that will have no record.
func (a *Attempt) Abandon() error {
	if a.samples == nil {
		return nil
	}
	return errors.Join(a.samples.Close(), os.RemoveAll(a.dir))
}

// Runs reads every record, in the order of the study. A record that cannot be read is
// skipped and its error is joined to the others.
func (f *Folder) Runs() ([]Run, error) {
	var runs []Run
	var errs []error
	names, err := f.records()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		var r Run
		if err := Load(f.Path(name), &r); err != nil {
			errs = append(errs, err)
			continue
		}
		runs = append(runs, r)
	}
	slices.SortStableFunc(runs, func(a, b Run) int {
		return cmp.Or(cmp.Compare(a.Order, b.Order), cmp.Compare(a.N, b.N), cmp.Compare(a.Try, b.Try))
	})
	return runs, errors.Join(errs...)
}

// Slot is one repetition of a cell in a study's plan.
type Slot struct {
	Cell string // its key
	N    int
}

// Slot is the slot that the run fills.
func (r *Run) Slot() Slot { return Slot{r.CellKey, r.N} }

// In reports whether the run is of a series: of the machine with the description env, and under
// the conditions of stamp, as far as they concern it. Nothing of two series is averaged. What is
// simulated is the same everywhere.
func (r *Run) In(env string, stamp []string) bool {
	return r.Simulated || r.Env == env && slices.Equal(r.Stamps(), r.concerning(stamp))
}

// Stamps are those of the run's that concern it. They are found for all environments of a
// study: without a guest a run does not depend on how guests are emulated, nor on their images.
func (r *Run) Stamps() []string { return r.concerning(r.Stamp) }

func (r *Run) concerning(stamp []string) []string {
	return slices.DeleteFunc(slices.Clone(stamp), func(s string) bool {
		what, value, _ := strings.Cut(s, "=")
		return (what == "accel" || what == "image") && !slices.ContainsFunc(r.Cell.Parts, func(p study.Part) bool {
			e := &p.Environment
			return e.Driver == study.QEMU && (what == "accel" || strings.HasPrefix(value, filepath.Base(e.Image)+"-"))
		})
	})
}

// Done are the slots that have a run with one of the verdicts in a series.
func Done(runs []Run, env string, stamp []string, verdicts ...Verdict) map[Slot]bool {
	done := map[Slot]bool{}
	for _, r := range runs {
		if r.In(env, stamp) && slices.Contains(verdicts, r.Verdict) {
			done[r.Slot()] = true
		}
	}
	return done
}

// Site is an environment on another host.
type Site struct{ Host, Environment string }

// Machines are the machines on which a series has valid runs: all runs of a site are of one. The same
// host in another environment may be another machine: a size of instances is rented after another.
func Machines(runs []Run, env string, stamp []string) map[Site]string {
	all := map[Site]string{}
	for _, r := range runs {
		if r.Verdict != Valid || !r.In(env, stamp) {
			continue
		}
		for _, h := range r.Hosts {
			for _, p := range r.Cell.Parts {
				if p.Host == h.Name && h.Machine != "" {
					all[Site{h.Name, p.Environment.Name}] = h.Machine
				}
			}
		}
	}
	return all
}

// RunPath is the path of a file next to a run's record.
func (f *Folder) RunPath(r *Run, name string) string {
	return f.Path("runs", r.CellKey, strconv.Itoa(r.N)+"."+strconv.Itoa(r.Try), name)
}

// Samples reads a run's seconds. A last line that a crash truncated is skipped; a run
// with a record has none.
func (f *Folder) Samples(r *Run) ([]Sample, error) {
	name := f.RunPath(r, sampleFile)
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	defer file.Close()
	d := json.NewDecoder(bufio.NewReader(file))
	var all []Sample
	for {
		var s Sample
		err := d.Decode(&s)
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return all, nil
		case err != nil:
			return all, fmt.Errorf("read samples %s: %w", name, err)
		}
		all = append(all, s)
	}
}
