package env

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// WaitAndExec waits for a line on standard input and then executes the program. It reads
// single bytes, so the rest of the input is left to others. Without a line it does not
// run the program. It returns only in that case, or with an error.
func WaitAndExec(argv []string) error {
	if len(argv) == 0 {
		return errors.New("hold: no program given")
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	if err := line(os.Stdin); err != nil {
		if errors.Is(err, io.EOF) {
			return nil
		}
		return fmt.Errorf("hold: %w", err)
	}
	null, err := unix.Open(os.DevNull, unix.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("hold: open %s: %w", os.DevNull, err)
	}
	if err := unix.Dup3(null, 0, 0); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	return fmt.Errorf("hold: run %s: %w", path, unix.Exec(path, argv, os.Environ()))
}

func line(r io.Reader) error {
	for one := make([]byte, 1); one[0] != '\n'; {
		if _, err := io.ReadFull(r, one); err != nil {
			return err
		}
	}
	return nil
}
