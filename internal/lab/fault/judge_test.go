package fault

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
)

// left names what a lab that was killed and restored has left on the machine.
func (s *testbed) left(pid int, children []child) (all []string) {
	for end := time.Now().Add(s.patience); ; <-time.After(50 * time.Millisecond) {
		all = nil
		for _, pattern := range []string{"/sys/fs/cgroup/quell-lab-*%d-*", "/sys/fs/cgroup/*/quell-lab-*%d-*", os.TempDir() + "/quell-lab-*%d-*"} {
			found, _ := filepath.Glob(fmt.Sprintf(pattern, pid)) // the pattern is valid
			for _, name := range found {
				// Its own, not those of a pid with the same ending.
				if words := strings.Split(filepath.Base(name), "-"); words[len(words)-2] == fmt.Sprint(pid) {
					all = append(all, name)
				}
			}
		}
		for _, c := range children {
			if c.lives() {
				all = append(all, fmt.Sprintf("process %d (%s)", c.pid, c.name))
			}
		}
		if text, err := os.ReadFile(knob); err != nil || strings.TrimSpace(string(text)) != s.knob {
			all = append(all, fmt.Sprintf("%s holds %q, was %q", knob, strings.TrimSpace(string(text)), s.knob))
		}
		if len(all) == 0 || time.Now().After(end) {
			return all
		}
	}
}

// look lists the records of a folder, counts the runs that were begun, and names the
// records that cannot be read.
func look(out string) (records []string, begun int, problems []string) {
	records, _ = filepath.Glob(filepath.Join(out, "runs", "*", "*", "run.json"))
	folders, _ := filepath.Glob(filepath.Join(out, "runs", "*", "*"))
	for _, name := range records {
		if _, err := read(name); err != nil {
			problems = append(problems, err.Error())
		}
	}
	return records, len(folders), problems
}

func read(name string) (result.Run, error) {
	var r result.Run
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read %s: %w", name, err)
	}
	return r, nil
}
