//go:build !amd64

package fault

import (
	"errors"

	"golang.org/x/sys/unix"
)

func skip(int) error                  { return errors.ErrUnsupported }
func setResult(int, unix.Errno) error { return errors.ErrUnsupported }
func setLength(int, uint64) error     { return errors.ErrUnsupported }
