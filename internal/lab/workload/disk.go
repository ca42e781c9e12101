package workload

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/chase"
)

// reads returns a piece of work that reads random blocks of a file, bypassing the page
// cache: each read waits for the disk of Dir. The file belongs to the thread and has no
// name, so that nothing is left of it.
func (b *kernelRun) reads(k Kernel, thread uint64) (piece, func(), error) {
	nothing := func() {}
	f, err := scratch(k.Dir, k.Set)
	if err != nil {
		return nil, nothing, fmt.Errorf("run read: make a file in %s: %w (-dir: a folder on a disk)", k.Dir, err)
	}
	block, unmap, err := chase.Map(k.Block) // page-aligned memory for direct I/O
	if err != nil {
		return nil, func() { f.Close() }, err
	}
	free := func() { unmap(); f.Close() }
	fd, to, size := f.Fd(), uintptr(unsafe.Pointer(&block[0])), uintptr(k.Block)
	r := rand.New(rand.NewPCG(k.Seed, thread))
	return func() float64 {
		for range k.Work {
			at := r.Int64N(k.Set/k.Block) * k.Block
			n, errno := raw(unix.SYS_PREAD64, fd, to, size, uintptr(at))
			switch {
			case errno != 0:
				b.fail(fmt.Errorf("read %d bytes of a file in %s: %w", k.Block, k.Dir, errno))
				return 0
			case n != size:
				b.fail(fmt.Errorf("read %d bytes of a file in %s: got %d", k.Block, k.Dir, n))
				return 0
			}
		}
		return float64(k.Work)
	}, free, nil
}

// scratch is an unnamed file in a folder, with size bytes allocated on the disk. It is
// read past the page cache (open(2): O_TMPFILE, O_DIRECT).
func scratch(dir string, size int64) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return nil, err
	}
	piece, noise := make([]byte, 1<<20), rand.NewChaCha8([32]byte{}) // data that no file system can compress
	for left := size; left > 0 && err == nil; left -= int64(len(piece)) {
		_, _ = noise.Read(piece) // never fails
		_, err = f.Write(piece[:min(left, int64(len(piece)))])
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		var flags int
		if flags, err = unix.FcntlInt(f.Fd(), unix.F_GETFL, 0); err == nil {
			_, err = unix.FcntlInt(f.Fd(), unix.F_SETFL, flags|unix.O_DIRECT)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
