package report

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/plan"
)

// LogName is the agent's log of incidents in its state directory: a whole
// plan.Incident a line, written again at each change, so that the last line of
// an ID counts. Rotated ones are LogName.1 (the newest), LogName.2 …
const LogName = "incidents.jsonl"

// LoadIncidents reads the log below dir, oldest incident first. skipped counts
// lines that are no incident: a crash may tear the last one. A directory
// without a log has no incidents; one that does not exist is an error.
func LoadIncidents(dir string) (list []plan.Incident, skipped int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, fmt.Errorf("load incidents: %w", err)
	}
	var ages []int
	for _, e := range entries {
		if e.Name() == LogName {
			ages = append(ages, 0)
		} else if rest, ok := strings.CutPrefix(e.Name(), LogName+"."); ok {
			if n, err := strconv.Atoi(rest); err == nil && n > 0 {
				ages = append(ages, n)
			}
		}
	}
	// Newest first: a rotation meanwhile shows lines twice instead of never.
	slices.Sort(ages)
	all := map[string]plan.Incident{}
	for _, age := range ages {
		name := filepath.Join(dir, LogName)
		if age > 0 {
			name += "." + strconv.Itoa(age)
		}
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, skipped, fmt.Errorf("load incidents: %w", err)
		}
		found, bad, err := readIncidents(f)
		f.Close()
		if err != nil {
			return nil, skipped, fmt.Errorf("load incidents: read %s: %w", name, err)
		}
		skipped += bad
		for id, inc := range found {
			if _, newer := all[id]; !newer {
				all[id] = inc
			}
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b plan.Incident) int {
		return cmp.Or(cmp.Compare(a.Opened, b.Opened), cmp.Compare(a.ID, b.ID))
	}), skipped, nil
}

// readIncidents reads one file of the log.
func readIncidents(r io.Reader) (last map[string]plan.Incident, skipped int, err error) {
	last = map[string]plan.Incident{}
	for lines := bufio.NewReaderSize(r, 1<<16); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return nil, skipped, err
		}
		if len(bytes.TrimSpace(line)) > 0 {
			if inc, ok := parseIncident(line); ok {
				last[inc.ID] = inc
			} else {
				skipped++
			}
		}
		if err == io.EOF {
			return last, skipped, nil
		}
	}
}

func parseIncident(line []byte) (inc plan.Incident, ok bool) {
	return inc, json.Unmarshal(line, &inc) == nil && inc.ID != ""
}
