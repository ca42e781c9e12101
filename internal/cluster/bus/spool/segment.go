package spool

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
)

// A segment file is the magic followed by frames: the length of a message and its
// CRC-32C, four bytes each, little-endian, and the message. There are no empty messages,
// because a crash can leave zeros at the end of a file.
const (
	magic       = "qspool1\n"
	frameHeader = 8
)

// castagnoli returns the table, which hash/crc32 creates once.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

var errDamaged = errors.New("damaged")

func segmentName(first uint64) string { return fmt.Sprintf("%020d%s", first, suffix) }

func appendFrame(buf, message []byte) []byte {
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(message)))
	buf = binary.LittleEndian.AppendUint32(buf, crc32.Checksum(message, castagnoli()))
	return append(buf, message...)
}

// segment is one file of a spool.
type segment struct {
	path       string
	first, end uint64 // numbers of its first message and one past its last
	size       int64
	offsets    []int64 // of its frames; nil: not scanned yet
}

// scan finds the frames of the file, up to the first incomplete one, and returns where
// they end. A file that was removed has none.
func (g *segment) scan() (good int64, err error) {
	f, err := os.Open(g.path)
	if errors.Is(err, fs.ErrNotExist) {
		g.offsets = []int64{}
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	offsets, good, err := frames(f)
	g.offsets = offsets
	return good, err
}

// frames finds the frames of a segment. The error is a read error; damage only ends the
// list.
func frames(r io.Reader) (offsets []int64, good int64, err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	head := make([]byte, frameHeader)
	offsets = []int64{}
	if _, err := io.ReadFull(in, head); err != nil || string(head) != magic {
		return offsets, 0, ignoreEOF(err)
	}
	good = int64(len(magic))
	for {
		if _, err := io.ReadFull(in, head); err != nil {
			return offsets, good, ignoreEOF(err)
		}
		n := binary.LittleEndian.Uint32(head)
		if n == 0 || n > MaxMessage {
			return offsets, good, nil
		}
		sum := crc32.New(castagnoli())
		if _, err := io.CopyN(sum, in, int64(n)); err != nil {
			return offsets, good, ignoreEOF(err)
		}
		if sum.Sum32() != binary.LittleEndian.Uint32(head[4:]) {
			return offsets, good, nil
		}
		offsets = append(offsets, good)
		good += frameHeader + int64(n)
	}
}

// ignoreEOF drops the errors that mean the end of a file.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// read returns a frame's message, errDamaged if it differs from what was written.
func (g *segment) read(i int) ([]byte, error) {
	f, err := os.Open(g.path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it is only read
	end := g.size
	if i+1 < len(g.offsets) {
		end = g.offsets[i+1]
	}
	if end-g.offsets[i] <= frameHeader {
		return nil, errDamaged
	}
	frame := make([]byte, end-g.offsets[i])
	if _, err := f.ReadAt(frame, g.offsets[i]); err != nil {
		if ignoreEOF(err) == nil {
			return nil, errDamaged
		}
		return nil, err
	}
	n := binary.LittleEndian.Uint32(frame)
	if int64(n) > int64(len(frame)-frameHeader) || n == 0 {
		return nil, errDamaged
	}
	message := frame[frameHeader:][:n]
	if crc32.Checksum(message, castagnoli()) != binary.LittleEndian.Uint32(frame[4:]) {
		return nil, errDamaged
	}
	return message, nil
}
