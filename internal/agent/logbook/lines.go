package logbook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// RotatingFile appends JSON lines to a file and rotates it: Path.1 is the newest rotated file.
// The unexported fields start as zero values.
type RotatingFile struct {
	Path string
	Max  int64 // bytes of a file; a longer line gets its own file
	Keep int   // rotated files

	f    *os.File
	size int64
	// rotated is called after Path has become Path.1.
	rotated func()
}

// Write appends one value.
func (l *RotatingFile) Write(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode line of %s: %w", l.Path, err)
	}
	_, err = l.append(append(line, '\n'))
	return err
}

// append writes a line and returns its offset.
func (l *RotatingFile) append(line []byte) (int64, error) {
	if l.f != nil && l.size > 0 && l.size+int64(len(line)) > l.Max {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	if l.f == nil {
		if err := l.open(); err != nil {
			return 0, err
		}
	}
	at := l.size
	n, err := l.f.Write(line)
	l.size += int64(n)
	if err != nil {
		// Opening it again ends a partly written line.
		return 0, fmt.Errorf("append to %s: %w", l.Path, errors.Join(err, l.Close()))
	}
	return at, nil
}

// open continues the file. It ends a line that a crash has truncated, so that the next line is separate.
func (l *RotatingFile) open() error {
	f, err := os.OpenFile(l.Path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("open log: %w", err), f.Close())
	}
	l.f, l.size = f, info.Size()
	last := make([]byte, 1)
	if l.size > 0 {
		if _, err := f.ReadAt(last, l.size-1); err == nil && last[0] != '\n' {
			n, _ := f.Write([]byte("\n"))
			l.size += int64(n)
		}
	}
	return nil
}

func (l *RotatingFile) rotate() error {
	errs := []error{l.Close()}
	for i := l.Keep - 1; i >= 1; i-- {
		err := os.Rename(fmt.Sprintf("%s.%d", l.Path, i), fmt.Sprintf("%s.%d", l.Path, i+1))
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.Rename(l.Path, l.Path+".1"))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("rotate %s: %w", l.Path, err)
	}
	if l.rotated != nil {
		l.rotated()
	}
	return nil
}

// Close closes the file; the next Write opens it again.
func (l *RotatingFile) Close() error {
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}
