package audit

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

// switches are the context switches of CPUs from the kernel's records.
type switches struct {
	rings   []*ring
	pending []Switch // read, but earlier ones may follow
}

// ring is the buffer of one CPU's events.
type ring struct {
	fd   int
	cpu  int
	mem  []byte
	head *unix.PerfEventMmapPage
	data []byte
}

// pages is the number of 4 KiB pages in a ring, a power of two: 100,000 records, half a
// second of a CPU with 100,000 switches per second. On a loaded machine the reader may
// be late too.
const pages = 1024

// openSwitches starts the recording of the CPUs' switches.
func openSwitches(cpus sample.Set) (_ *switches, err error) {
	s := &switches{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("record context switches: %w", err), s.close())
		}
	}()
	for _, cpu := range cpus.Numbers() {
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY,
			Sample_type: unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME | unix.PERF_SAMPLE_CPU,
			Bits:        unix.PerfBitContextSwitch | unix.PerfBitSampleIDAll | unix.PerfBitUseClockID, Clockid: unix.CLOCK_MONOTONIC}
		attr.Size = uint32(unsafe.Sizeof(attr))
		fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			return nil, fmt.Errorf("perf_event_open on CPU %d: %w", cpu, err)
		}
		r := &ring{fd: fd, cpu: cpu}
		s.rings = append(s.rings, r)
		page := unix.Getpagesize()
		size := pages * 4096
		if r.mem, err = unix.Mmap(fd, 0, page+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			return nil, fmt.Errorf("map the buffer of CPU %d: %w", cpu, err)
		}
		r.head = (*unix.PerfEventMmapPage)(unsafe.Pointer(&r.mem[0]))
		r.data = r.mem[page:]
	}
	return s, nil
}

// read passes the switches before an instant to the ledger, in order. All records from
// before the instant are there: the kernel writes a record during the switch.
func (s *switches) read(before int64, l *Ledger) {
	for _, r := range s.rings {
		s.pending = r.drain(s.pending, &l.Lost)
	}
	slices.SortStableFunc(s.pending, func(a, b Switch) int { return cmp.Compare(a.At, b.At) })
	n := 0
	for n < len(s.pending) && s.pending[n].At < before {
		l.Add(s.pending[n])
		n++
	}
	s.pending = append(s.pending[:0], s.pending[n:]...)
}

// drain empties a ring; the mmap layout is documented in perf_event_open(2).
func (r *ring) drain(to []Switch, lost *uint64) []Switch {
	head := atomic.LoadUint64(&r.head.Data_head)
	tail := r.head.Data_tail
	for tail < head {
		header := r.bytes(tail, 8)
		size := uint64(binary.NativeEndian.Uint16(header[6:]))
		if size < 8 || size > head-tail {
			break // never seen; the rest is lost
		}
		to = parse(to, r.bytes(tail, size), lost)
		tail += size
	}
	atomic.StoreUint64(&r.head.Data_tail, head)
	return to
}

// bytes returns the bytes of a record, which may wrap around the ring's end.
func (r *ring) bytes(at, size uint64) []byte {
	at %= uint64(len(r.data))
	if at+size <= uint64(len(r.data)) {
		return r.data[at : at+size]
	}
	first := r.data[at:]
	return append(slices.Clone(first), r.data[:size-uint64(len(first))]...)
}

// parse reads one record. Its last 24 bytes are from sample_id_all: pid and tid, time,
// CPU.
func parse(to []Switch, record []byte, lost *uint64) []Switch {
	kind, misc := binary.NativeEndian.Uint32(record), binary.NativeEndian.Uint16(record[4:])
	switch kind {
	case unix.PERF_RECORD_LOST:
		if len(record) >= 24 {
			*lost += binary.NativeEndian.Uint64(record[16:])
		}
	case unix.PERF_RECORD_SWITCH, unix.PERF_RECORD_SWITCH_CPU_WIDE:
		if len(record) < 8+24 {
			return to
		}
		id := record[len(record)-24:]
		to = append(to, Switch{At: int64(binary.NativeEndian.Uint64(id[8:])), TID: int(int32(binary.NativeEndian.Uint32(id[4:]))),
			CPU: int(binary.NativeEndian.Uint32(id[16:])), On: misc&unix.PERF_RECORD_MISC_SWITCH_OUT == 0,
			Preempted: misc&unix.PERF_RECORD_MISC_SWITCH_OUT_PREEMPT != 0})
	}
	return to
}

// close ends the recording, if there is one.
func (s *switches) close() error {
	if s == nil {
		return nil
	}
	var errs []error
	for _, r := range s.rings {
		if r.mem != nil {
			errs = append(errs, unix.Munmap(r.mem))
		}
		errs = append(errs, unix.Close(r.fd))
	}
	s.rings = nil
	return errors.Join(errs...)
}
