package origin

import (
	"cmp"
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

// openState opens a state file of a runtime for reading up to maxFile; fs.ErrNotExist also if it is none.
func openState(file string) (io.ReadCloser, error) {
	f, err := host.OpenRegular(file)
	if errors.Is(err, syscall.ENOTDIR) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() > maxFile {
		err = fmt.Errorf("read %s: it has more than %d bytes", file, maxFile)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(f, maxFile), f}, nil
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
	file := filepath.Join(dir, "containers", id, "config.v2.json")
	f, err := openState(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", file, err)
	case c.Name == "":
		return nil, nil
	}
	return &record{name: strings.TrimPrefix(c.Name, "/"), image: c.Config.Image, labels: c.Config.Labels}, nil
}

// drivers are those of containers/storage. They are named here since the directory, which may be a user's, is not read:
// it may have any number of files.
var drivers = [...]string{"overlay", "vfs", "btrfs", "zfs", "aufs", "devicemapper"}

// podmanRecords reads what podman says of its containers, by ID, from the lists that containers/storage keeps:
// DIR/DRIVER-containers/containers.json and, since podman 4.4, volatile-containers.json there, which has those that
// were started with --rm.
func podmanRecords(dir string) (map[string]*record, error) {
	found := map[string]*record{}
	lists := 0
	for _, driver := range drivers {
		for _, name := range [...]string{"containers.json", "volatile-containers.json"} {
			file := filepath.Join(dir, driver+"-containers", name)
			f, err := openState(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return found, err
			}
			err = errors.Join(readList(f, found), f.Close())
			if err != nil {
				return found, fmt.Errorf("read %s: %w", file, err)
			}
			if lists++; lists == mostLists {
				return found, nil
			}
		}
	}
	return found, nil
}

// readList adds the containers of a list, one by one: a list of 4 MB may have a million entries with nothing in them.
func readList(list io.Reader, found map[string]*record) error {
	in := json.NewDecoder(list)
	if begin, err := in.Token(); err != nil || begin != json.Delim('[') {
		return cmp.Or(err, errors.New("it is no list"))
	}
	for in.More() {
		var c struct {
			ID       string   `json:"id"`
			Names    []string `json:"names"`
			Metadata string   `json:"metadata"`
		}
		if err := in.Decode(&c); err != nil {
			return err
		}
		if found[c.ID] != nil || len(c.Names) == 0 || len(c.ID) != 64 { // as podman's are: of shorter ones many fit in
			continue
		}
		var m struct {
			Image string `json:"image-name"`
		}
		_ = json.Unmarshal([]byte(c.Metadata), &m) // without it there is no image
		found[c.ID] = &record{name: c.Names[0], image: m.Image}
	}
	_, err := in.Token() // the end of the list
	return err
}

// userRecords is podmanRecords for the storage of a user's own podman.
func userRecords(uid int) (map[string]*record, error) {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil || u.HomeDir == "" {
		return nil, nil
	}
	return podmanRecords(filepath.Join(u.HomeDir, ".local/share/containers/storage"))
}
