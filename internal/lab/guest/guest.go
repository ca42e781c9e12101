package guest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
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
// output. The caller starts it. Without QEMU the error is a *MissingError.
func (m Machine) Command(ctx context.Context) (*exec.Cmd, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	program, pkg := m.Arch.QEMU()
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("start guest: %w", &MissingError{program, "apt-get install --no-install-recommends " + pkg, err})
	}
	cmd := exec.CommandContext(ctx, path, m.args()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd, nil
}

// StartKVM starts QEMU with a machine on KVM that runs nothing, and has it end. /dev/kvm may be there
// and lack what QEMU wants, as in a guest whose host emulates a part of KVM. The error is what QEMU said.
func StartKVM(ctx context.Context, arch Arch) error {
	program, _ := arch.QEMU()
	cmd := exec.CommandContext(ctx, program, "-accel", "kvm", "-machine", arch.board(), "-cpu", onKVM,
		"-nodefaults", "-no-user-config", "-display", "none", "-S", "-monitor", "stdio")
	cmd.Stdin = strings.NewReader("quit\n")
	var said strings.Builder
	cmd.Stderr = &said
	err := cmd.Run()
	if first, _, _ := strings.Cut(said.String(), "\n"); err != nil && first != "" {
		return errors.New(first)
	}
	return err
}
