package workload

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ProgressEnv is the environment variable with the path of a victim's progress file.
const ProgressEnv = "QUELL_PROGRESS"

// progress is the writing side of a progress file: 8 bytes, little-endian, the number of
// transactions since the process began.
type progress struct {
	f    *os.File // nil: not requested
	done uint64
	buf  [8]byte
}

// openProgress creates the file if needed and sets it to 0. It never truncates the file,
// so that a reader always finds 8 bytes. An empty path gives a progress that only counts.
func openProgress(path string) (*progress, error) {
	p := new(progress)
	if path == "" {
		return p, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open progress: %w", err)
	}
	p.f = f
	if err := p.add(0); err != nil {
		f.Close()
		return nil, err
	}
	return p, nil
}

// add counts n more transactions and writes the sum with one pwrite.
func (p *progress) add(n uint64) error {
	p.done += n
	if p.f == nil {
		return nil
	}
	binary.LittleEndian.PutUint64(p.buf[:], p.done)
	if n, errno := raw(unix.SYS_PWRITE64, p.f.Fd(), uintptr(unsafe.Pointer(&p.buf)), 8, 0); n != 8 {
		return fmt.Errorf("write progress: %d bytes: %w", n, errno)
	}
	return nil
}

func (p *progress) Close() error {
	if p.f == nil {
		return nil
	}
	return p.f.Close()
}
