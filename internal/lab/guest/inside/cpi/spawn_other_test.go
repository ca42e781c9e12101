//go:build inguest && !arm64

package cpi

import "golang.org/x/sys/unix"

// The guest is arm64; elsewhere the tests only compile.
const perTurn = 2

func spawn(uint64) (pid int) { return -int(unix.ENOSYS) }
