package env

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// labThatIsKilled makes an environment of the given driver, starts a program there that
// has left its process group, freezes it, and waits.
func labThatIsKilled() error {
	m, err := Open(Options{Hold: []string{os.Args[0], "play-hold"}, Agent: []string{os.Args[0], "play-agent"}, Prefix: testPrefix})
	if err != nil {
		return err
	}
	e, err := m.Make(context.Background(), part(study.Driver(os.Args[1])))
	if err != nil {
		return err
	}
	p, err := e.Start(context.Background(), lab.Job{Argv: []string{"setsid", "sleep", "1000"}})
	if err != nil {
		return err
	}
	if _, _, err := p.Begin(); err != nil {
		return err
	}
	id, err := sleeper(e)
	if err != nil {
		return err
	}
	if err := e.Freeze(true); err != nil {
		return err
	}
	fmt.Println(id, strings.Join(boxOf(e).dirs, " "))
	select {}
}

// sleeper waits for the program sleep in an environment: by then it has left its process group.
func sleeper(e lab.Environment) (int, error) {
	for look := time.Tick(2 * time.Millisecond); ; <-look {
		ids, err := e.Threads()
		if err != nil {
			return 0, err
		}
		for _, id := range ids {
			if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", id)); err == nil && string(name) == "sleep\n" {
				return id, nil
			}
		}
	}
}

func boxOf(e lab.Environment) *partCgroup {
	switch e := e.(type) {
	case *native:
		return e.partCgroup
	case *container:
		return e.partCgroup
	case *qemuGuest:
		return e.partCgroup
	}
	return nil
}

// After a kill -9 the next lab finds and removes everything of the killed lab, and
// nothing of a living one.
func TestSweep(t *testing.T) {
	m := openMaker(t)
	mine := makeEnv(t, m, part(study.Cgroup))
	for _, driver := range []study.Driver{study.Bare, study.Cgroup, study.LXC} {
		t.Run(string(driver), func(t *testing.T) {
			if driver == study.LXC {
				quelltest.Need(t, "lxc-start")
			}
			// Through env(1), since the first word of a test binary's own command
			// line must not be one of go test's flags.
			cmd := exec.Command("/usr/bin/env", childEnv+"=play-lab", os.Args[0], string(driver))
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			words := strings.Fields(line)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if err := m.Sweep(); err != nil {
				t.Fatal(err)
			}
			for _, dir := range words[1:] {
				if _, err := os.Stat(dir); !os.IsNotExist(err) {
					t.Errorf("%s: %v", dir, err)
				}
			}
			if left, err := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(filepath.Dir(words[1]))); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
			pid, err := strconv.Atoi(words[0])
			if err != nil {
				t.Fatal(err)
			}
			quelltest.Until(t, "its process is gone", func() bool { return zombie(pid) })
		})
	}
	for _, dir := range mine.(*native).dirs {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("the sweep took a living lab's: %v", err)
		}
	}
}
