package logbook

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// scan builds the index from the files.
func (b *Book) scan() error {
	found, err := os.ReadDir(b.dir)
	if err != nil {
		return err
	}
	var ages []int
	for _, e := range found {
		if e.Name() == Name {
			ages = append(ages, 0)
		} else if rest, ok := strings.CutPrefix(e.Name(), Name+"."); ok {
			if n, err := strconv.Atoi(rest); err == nil && n > 0 {
				ages = append(ages, n)
			}
		}
	}
	slices.Sort(ages)
	if n := len(ages); n > 0 {
		b.newest = ages[n-1] // so that the oldest is number 0
	}
	// Newest first: a concurrent rotation makes lines appear twice instead of never.
	for _, age := range ages {
		file := b.newest - age
		f, err := os.Open(b.path(file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = b.scanFile(f, file)
		f.Close()
		if err != nil {
			return fmt.Errorf("read %s: %w", b.path(file), err)
		}
	}
	return nil
}

func (b *Book) scanFile(r io.Reader, file int) error {
	at := int64(0)
	for lines := bufio.NewReaderSize(r, 1<<16); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return err
		}
		if len(bytes.TrimSpace(line)) > 0 {
			if e, ok := parse(line); ok {
				e.file, e.at, e.length = file, at, len(line)
				b.note(e)
			} else {
				b.skipped++
			}
		}
		if err == io.EOF {
			return nil
		}
		at += int64(len(line))
	}
}

// parse reads the fields of an incident that the index needs.
func parse(line []byte) (*entry, bool) {
	var head struct {
		ID      string                                 `json:"id"`
		Victim  struct{ Task, Cgroup sample.TaskName } `json:"victim"`
		Opened  sample.Millis                          `json:"opened"`
		Updated sample.Millis                          `json:"updated"`
		Closed  sample.Millis                          `json:"closed"`
	}
	if json.Unmarshal(line, &head) != nil || head.ID == "" {
		return nil, false
	}
	return &entry{id: head.ID, victim: sample.Task{Name: head.Victim.Task, Cgroup: head.Victim.Cgroup}, opened: head.Opened, updated: head.Updated, closed: head.Closed}, true
}
