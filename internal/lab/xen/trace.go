package xen

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Record is one record of a trace (xen/include/public/trace.h).
type Record struct {
	CPU   int // physical
	Event uint32
	TSC   uint64 // 0 if the record has none
	Extra []uint32
}

// The events that are evaluated.
const (
	eventCPUChange = 0x0001f003 // the records that follow are another CPU's

	eventLost = 0x0001f001 // the first extra is the number of lost records

	classMask = 0x0fff0000
	classPV   = 0x00200000
	classHVM  = 0x00080000

	eventRunstate = 0x00021001 // | old state << 8 | new state << 4
	eventGrantMap = 0x0010f001

	hypercallV2  = 0x0020100d // | 0x100: from a 64-bit guest
	evtchnOp     = 32         // HYPERVISOR_event_channel_op
	evtchnOpOld  = 16
	opMask       = 0xfffff
	idleDomain   = 0x7fff
	maxPhysical  = 4096 // CPUs; a larger number means a damaged trace
	runstateMask = 0x0ffff00f
)

// Decode reads a trace of xentrace, record by record; the record and its Extra are
// valid until the next. If the trace ends within a record, as after an interruption,
// Decode ends there without an error.
func Decode(r io.Reader, each func(*Record) error) error {
	in := bufio.NewReaderSize(r, 1<<16)
	var rec Record
	var words [7]uint32
	var buf [8 + 7*4]byte
	for at := int64(0); ; {
		if _, err := io.ReadFull(in, buf[:4]); err != nil {
			return ended(err)
		}
		head := binary.LittleEndian.Uint32(buf[:])
		n := int(head >> 28 & 7)
		rest, timed := 4*n, head>>31 == 1
		if timed {
			rest += 8
		}
		if _, err := io.ReadFull(in, buf[:rest]); err != nil {
			return ended(err)
		}
		b := buf[:rest]
		rec.Event, rec.TSC = head&0x0fffffff, 0
		if timed {
			rec.TSC, b = binary.LittleEndian.Uint64(b), b[8:]
		}
		for i := range n {
			words[i] = binary.LittleEndian.Uint32(b[4*i:])
		}
		rec.Extra = words[:n]
		at += int64(4 + rest)
		if rec.Event == eventCPUChange {
			if n < 1 || words[0] >= maxPhysical {
				return fmt.Errorf("read trace: byte %d: invalid CPU %v", at, rec.Extra)
			}
			rec.CPU = int(words[0])
			continue
		}
		if err := each(&rec); err != nil {
			return err
		}
	}
}

func ended(err error) error {
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return fmt.Errorf("read trace: %w", err)
}
