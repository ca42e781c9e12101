package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// mark is in the environment of every process that a soak in this folder starts.
func (s *soak) mark() string { return "SOAK_GATE=" + s.dir }

// loadFile holds the process group of the load. stress-ng's workers overwrite
// their environment, so the mark does not find them.
func (s *soak) loadFile() string { return filepath.Join(s.dir, "load.pid") }

// killLeft kills what this soak, or an earlier one that was killed, left running:
// processes with its mark, and the load's group. It returns when none is left.
func (s *soak) killLeft() error {
	group := 0
	if text, err := os.ReadFile(s.loadFile()); err == nil {
		group, _ = strconv.Atoi(string(text))
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left, err := s.left(group)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes of a soak do not exit: %v", left)
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
	if err := os.Remove(s.loadFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// left returns the processes with the mark, and those of the load's group that
// have the load's name: the group's number may have been reused.
func (s *soak) left(group int) (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	load := filepath.Base(s.load[0])
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		// pid (comm) state ppid pgrp: comm may hold spaces and brackets.
		i := bytes.LastIndex(stat, []byte(") "))
		_, comm, _ := strings.Cut(string(stat[:i]), "(")
		fields := strings.Fields(string(stat[i+2:]))
		if fields[0] == "Z" {
			continue
		}
		inGroup := group > 0 && fields[2] == strconv.Itoa(group) && strings.HasPrefix(comm, load)
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ")) // not readable: not started by a soak
		marked := bytes.Contains(append([]byte{0}, env...), append([]byte("\x00"+s.mark()), 0))
		if inGroup || marked {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// machine describes in one line the machine that the runs are made on.
func machine() string {
	var u unix.Utsname
	release := "unknown"
	if unix.Uname(&u) == nil {
		release = unix.ByteSliceToString(u.Release[:])
	}
	model := "CPU"
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	var info unix.Sysinfo_t
	_ = unix.Sysinfo(&info) // it prints 0 GB then
	return fmt.Sprintf("%d x %s, %d GB, Linux %s, %s", runtime.NumCPU(), model, uint64(info.Totalram)*uint64(info.Unit)>>30, release, runtime.Version())
}
