package origin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/quell-dev/quell/internal/machine/host"
)

// maxFile bounds a state file, in bytes, and mostLists those of one podman: it has two for each driver of its storage.
const maxFile, mostLists = 4 << 20, 4

// exists reports whether there is a file.
func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// readState reads a state file of a runtime; fs.ErrNotExist also if it is none.
func readState(file string, v any) error {
	f, err := host.OpenRegular(file)
	if err != nil {
		if errors.Is(err, syscall.ENOTDIR) {
			err = fs.ErrNotExist
		}
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return err
	case len(text) > maxFile:
		return fmt.Errorf("read %s: it has more than %d bytes", file, maxFile)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	return nil
}

// dockerRecord reads what Docker says of a container from DIR/containers/ID/config.v2.json, as
// dockerd writes it at each change of the container; nil if dockerd does not know it.
func dockerRecord(dir, id string) (*record, error) {
	var c struct {
		Name   string
		Config struct {
			Image  string
			Labels map[string]string
		}
	}
	err := readState(filepath.Join(dir, "containers", id, "config.v2.json"), &c)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case c.Name == "":
		return nil, nil
	}
	return &record{name: strings.TrimPrefix(c.Name, "/"), image: c.Config.Image, labels: c.Config.Labels}, nil
}

// podmanRecords reads what podman says of its containers, by ID, from the lists that containers/storage keeps:
// DIR/DRIVER-containers/containers.json and, since podman 4.4, volatile-containers.json there, which has those that
// were started with --rm.
func podmanRecords(dir string) (map[string]*record, error) {
	lists, err := filepath.Glob(filepath.Join(dir, "*-containers", "*containers.json"))
	if err != nil {
		return nil, err
	}
	found := map[string]*record{}
	for _, file := range lists[:min(len(lists), mostLists)] {
		var all []struct {
			ID       string   `json:"id"`
			Names    []string `json:"names"`
			Metadata string   `json:"metadata"`
		}
		if err := readState(file, &all); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return found, err
		}
		for _, c := range all {
			if found[c.ID] != nil || len(c.Names) == 0 || len(c.ID) != 64 { // as podman's are: of shorter ones many fit in
				continue
			}
			var m struct {
				Image string `json:"image-name"`
			}
			_ = json.Unmarshal([]byte(c.Metadata), &m) // without it there is no image
			found[c.ID] = &record{name: c.Names[0], image: m.Image}
		}
	}
	return found, nil
}

// userRecords is podmanRecords for the storage of a user's own podman.
func userRecords(uid int) (map[string]*record, error) {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil || u.HomeDir == "" {
		return nil, nil
	}
	return podmanRecords(filepath.Join(u.HomeDir, ".local/share/containers/storage"))
}
