package guest

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// MissingError reports that the host lacks a program or a file that a guest needs.
type MissingError struct {
	What   string // "qemu-system-aarch64"
	Remedy string // what an operator can do about it
	Err    error
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s is missing: %v (remedy: %s)", e.What, e.Err, e.Remedy)
}

func (e *MissingError) Unwrap() error { return e.Err }

// Command is the command line of QEMU for the machine, with the console on its standard
// output. The
// caller starts it. Without QEMU the error is a *MissingError.
func (m Machine) Command(ctx context.Context) (*exec.Cmd, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	path, err := exec.LookPath(m.program())
	if err != nil {
		pkg := map[Arch]string{AMD64: "qemu-system-x86", ARM64: "qemu-system-arm"}[m.Arch]
		return nil, fmt.Errorf("start guest: %w", &MissingError{m.program(), "apt-get install --no-install-recommends " + pkg, err})
	}
	cmd := exec.CommandContext(ctx, path, m.args()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd, nil
}
