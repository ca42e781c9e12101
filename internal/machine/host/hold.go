package host

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"sync"

	"golang.org/x/sys/unix"
)

// heldFiles are files that stay open, by path inside the root without the device.
type heldFiles struct {
	mu    sync.Mutex
	files map[string]*heldFile
}

type heldFile struct {
	*os.File
	holds int
}

// errNotHeld means that the file must be opened.
var errNotHeld = errors.New("not held")

// Hold opens files for ReadValue and WriteValue, which then need no descriptor: a limit can be
// undone also when tasks or clients have used up all of them. It opens all of them or none.
// A cgroup that is gone is gone in spite of that. Release closes them; each Hold needs one.
func (h *Host) Hold(files ...string) error {
	for i, file := range files {
		if err := h.held.hold(h, file); err != nil {
			h.Release(files[:i]...)
			return fmt.Errorf("hold %s: %w", file, orNotPermitted(file, err))
		}
	}
	return nil
}

// Release closes files that Hold has opened.
func (h *Host) Release(files ...string) {
	for _, file := range files {
		h.held.release(file)
	}
}

// Held reports whether Hold has opened a file of a cgroup that is still there. In v1 it may have another
// path by now (rename(2)): ReadValue and WriteValue find the file nevertheless, by the former path.
func (h *Host) Held(dir string) bool {
	h.held.mu.Lock()
	defer h.held.mu.Unlock()
	for file, f := range h.held.files {
		var st unix.Stat_t
		if path.Dir(file) != dir || unix.Fstat(int(f.Fd()), &st) != nil || st.Nlink == 0 {
			continue
		}
		if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, unix.ENODEV) {
			return true
		}
	}
	return false
}

func (s *heldFiles) hold(h *Host, file string) error {
	file, _ = splitDevice(file)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files[file]; f != nil {
		f.holds++
		return nil
	}
	f, err := openLong(h.Path(file), os.O_RDWR)
	if err != nil {
		return err
	}
	if s.files == nil {
		s.files = map[string]*heldFile{}
	}
	s.files[file] = &heldFile{f, 1}
	return nil
}

func (s *heldFiles) release(file string) {
	file, _ = splitDevice(file)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[file]
	if f == nil {
		return
	}
	if f.holds--; f.holds == 0 {
		f.Close()
		delete(s.files, file)
	}
}

func (s *heldFiles) read(file string) (text []byte, err error) {
	err = s.use(file, func(f *os.File) error {
		text, err = io.ReadAll(io.NewSectionReader(f, 0, math.MaxInt64))
		return err
	})
	return text, err
}

func (s *heldFiles) write(file, value string) error {
	return s.use(file, func(f *os.File) error { return writeAt(f, value) })
}

// use calls do with a held file. If its cgroup or controller is gone, the path may be that of
// a new file by now: then the file counts as not held.
func (s *heldFiles) use(file string, do func(*os.File) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[file]
	if f == nil {
		return errNotHeld
	}
	err := do(f.File)
	if errors.Is(err, unix.ENODEV) {
		return errNotHeld
	}
	return err
}
