//go:build !linux

package quelltest

import (
	"errors"
	"runtime"
)

func probeKernel(string) error { return errors.New("running on " + runtime.GOOS) }
