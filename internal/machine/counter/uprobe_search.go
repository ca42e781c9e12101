package counter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// place is where a task's program has the place of a uprobe, and the program, which is open.
type place struct {
	file   *os.File
	id     fileID
	offset uint64
	err    error
}

func (p *place) close() {
	if p.file != nil {
		p.file.Close()
	}
}

// hang is a search in a task's program, or the attaching to it.
type hang struct {
	running bool
	began   time.Time
	until   time.Time // the task is quarantined until then
}

// search is locate with a limit. A task whose search takes longer is quarantined, as one
// whose progress file does not answer.
func (w *uprobeWindow) search(r *probeRequest) place {
	h, err := w.mayHang(r)
	if err != nil {
		return place{err: err}
	}
	p, err := limited(w, r, h, func() place { return w.locate(r) }, func(p place) { p.close() })
	if err != nil {
		return place{err: err}
	}
	return p
}

// put attaches a probe at a place, whose file it takes, with the same limit: the kernel reads the file.
func (w *uprobeWindow) put(r *probeRequest, p *place) (Probe, error) {
	h, err := w.mayHang(r)
	if err != nil {
		return nil, err
	}
	type result struct {
		probe Probe
		err   error
	}
	file, offset := p.file, p.offset
	p.file = nil
	v, err := limited(w, r, h, func() result {
		defer file.Close()
		probe, err := w.kernel.Attach(file, offset)
		return result{probe, err}
	}, func(v result) {
		if v.err == nil {
			v.probe.Close()
		}
	})
	if err != nil {
		return nil, err
	}
	if v.err != nil {
		return nil, fmt.Errorf("uprobe %s: %w", r.target.Uprobe, v.err)
	}
	return v.probe, nil
}

// limited returns what f returns, or, if that takes too long or the window ends, why there is nothing;
// then what f returns later is dropped.
func limited[T any](w *uprobeWindow, r *probeRequest, h *hang, f func() T, drop func(T)) (v T, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookLimit)
	defer cancel()
	go func() {
		select {
		case <-w.end:
			cancel()
		case <-ctx.Done():
		}
	}()
	v, returned := within(ctx, f, func(v T) {
		drop(v)
		w.uprobes.mu.Lock()
		defer w.uprobes.mu.Unlock()
		h.running = false
	})
	w.uprobes.mu.Lock()
	defer w.uprobes.mu.Unlock()
	switch {
	case returned:
		delete(w.hangs, r.target.Key)
		return v, nil
	case errors.Is(ctx.Err(), context.Canceled):
		return v, errAttaching
	}
	h.until = w.now().Add(leastQuarantine)
	return v, &QuarantineError{leastQuarantine}
}

// mayHang records that a search or an attaching runs, or says why there must be none. One that the end
// of its window interrupted goes on, and has the same limit.
func (w *uprobeWindow) mayHang(r *probeRequest) (*hang, error) {
	w.uprobes.mu.Lock()
	defer w.uprobes.mu.Unlock()
	now := w.now()
	if h := w.hangs[r.target.Key]; h != nil {
		switch {
		case now.Before(h.until), h.running && now.Sub(h.began) >= lookLimit:
			return nil, &QuarantineError{leastQuarantine}
		case h.running:
			return nil, errAttaching
		}
	}
	running := 0
	for _, h := range w.hangs {
		if h.running {
			running++
		}
	}
	if running >= maxHung {
		return nil, fmt.Errorf("not looked at: %d looks at tasks hang", running)
	}
	h := &hang{running: true, began: now}
	w.hangs[r.target.Key] = h
	return h, nil
}

// locate opens a task's program and finds the place in it.
func (w *uprobeWindow) locate(r *probeRequest) (p place) {
	files := taskFiles{proc: w.proc}
	p.err = errNoBinary
	for _, pid := range r.pids[:min(len(r.pids), maxScrapePIDs)] {
		fd, at, err := files.open(pid, r.target.Uprobe.Binary)
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			p.err = &NotSupportedError{What: "uprobes in other users' programs", Reason: err.Error(), Err: err, Remedy: "grant CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"}
			return p
		}
		if refused := (*FileSystemError)(nil); errors.As(err, &refused) {
			p.err = err
		}
		if err == nil {
			p.file, p.id, p.err = os.NewFile(uintptr(fd), r.target.Uprobe.Binary), at, nil
			break
		}
	}
	if p.err != nil {
		return p
	}
	if p.offset, p.err = w.find(p.file, p.id, r.target.Uprobe); p.err != nil {
		p.err = fmt.Errorf("uprobe %s: %w", r.target.Uprobe, p.err)
	}
	return p
}

// find looks a place up once for each version of the file.
func (w *uprobeWindow) find(file *os.File, id fileID, at *Uprobe) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return 0, err
	}
	key := foundKey{id, st.Size, st.Ctim, at.Symbol, at.Offset, at.BuildID}
	w.uprobes.mu.Lock()
	offset, ok := w.found[key]
	w.uprobes.mu.Unlock()
	if ok {
		return offset, nil
	}
	offset, err := w.kernel.Find(file, at)
	if err != nil {
		return 0, err
	}
	w.uprobes.mu.Lock()
	defer w.uprobes.mu.Unlock()
	if len(w.found) >= 1024 { // programs come and go
		clear(w.found)
	}
	w.found[key] = offset
	return offset, nil
}
