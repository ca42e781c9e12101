package observe

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/machine/host"
)

// Description is the state of a machine when a study ran on it.
type Description struct {
	Items []Item `json:"items"` // by name
}

// Item is one property of a machine.
type Item struct {
	Name  string `json:"name"` // e.g. "cpu.governor"
	Value string `json:"value,omitempty"`
	// Missing is why there is no value.
	Missing string `json:"missing,omitempty"`
	// Transient is true if the value changes by itself, as a temperature does: a change
	// does not make it a different machine.
	Transient bool `json:"passing,omitempty"`
}

// Describe reads everything about a machine that is available in files. Items that only
// the caller knows (versions of the tools, hashes of the binaries) are added from more.
func Describe(h *host.Host, more map[string]string) (d Description) {
	for _, s := range sources() {
		for name, text := range s.read(h) {
			d.add(name, text, s.transient)
		}
	}
	for name, text := range more {
		d.add(name, value{text: text}, false)
	}
	slices.SortFunc(d.Items, func(a, b Item) int { return strings.Compare(a.Name, b.Name) })
	return d
}

func (d *Description) add(name string, v value, passing bool) {
	i := Item{Name: name, Value: v.text, Transient: passing}
	if v.err != nil {
		i.Value, i.Missing = "", v.err.Error()
	}
	d.Items = append(d.Items, i)
}

// Hash identifies the machine's state: two descriptions have the same hash unless an item
// differs that does not change by itself.
func (d Description) Hash() string {
	sum := sha256.New()
	for _, i := range d.Items {
		if !i.Transient {
			fmt.Fprintf(sum, "%q %q %t\n", i.Name, i.Value, i.Missing != "")
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// Get returns an item's value; false if it is missing or unknown.
func (d Description) Get(name string) (string, bool) {
	for _, i := range d.Items {
		if i.Name == name {
			return i.Value, i.Missing == ""
		}
	}
	return "", false
}

// Diff lists what has changed since an earlier description, one line each: "name: old →
// new". Items that change by themselves are marked with "~" and come last.
func (d Description) Diff(before Description) []string {
	say := func(i Item, ok bool) string {
		switch {
		case !ok:
			return "(not described)"
		case i.Missing != "":
			return "(missing: " + i.Missing + ")"
		}
		return i.Value
	}
	index := func(d Description) map[string]Item {
		all := map[string]Item{}
		for _, i := range d.Items {
			all[i.Name] = i
		}
		return all
	}
	was, is := index(before), index(d)
	names := maps.Clone(was)
	maps.Copy(names, is)
	var lasting, passing []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, inA := was[name]
		b, inB := is[name]
		from, to := say(a, inA), say(b, inB)
		// The reason why it is missing may be worded differently.
		if from == to || inA && inB && a.Missing != "" && b.Missing != "" {
			continue
		}
		line := fmt.Sprintf("%s: %s → %s", name, from, to)
		if names[name].Transient {
			passing = append(passing, "~ "+line)
		} else {
			lasting = append(lasting, line)
		}
	}
	return append(lasting, passing...)
}

// value is what was read, or the error why it was not.
type value struct {
	text string
	err  error
}

// source reads items of a machine.
type source struct {
	transient bool
	read      func(h *host.Host) map[string]value
}

// file is one item from one file; its path says what it is.
func file(name, path string) source {
	return source{read: func(h *host.Host) map[string]value { return map[string]value{name: readValue(h, path)} }}
}

func readValue(h *host.Host, path string) value {
	text, err := h.ReadValue(path)
	if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(path, "/sys/kernel/debug/") {
		return value{err: errors.New("file does not exist; is debugfs mounted?")}
	}
	if err != nil {
		return value{err: cause(err)}
	}
	return value{text: text}
}

// cause returns an error's cause without its path, which depends on where the machine
// is mounted.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// singleItem is a single item from code.
func singleItem(name string, passing bool, read func(h *host.Host) (string, error)) source {
	return source{transient: passing, read: func(h *host.Host) map[string]value {
		text, err := read(h)
		return map[string]value{name: {text, err}}
	}}
}

// each reads one item for each path that matches a pattern, NAME.BASE, from the file
// below it. If there is none, it is a single missing item.
func each(name, pattern, below string) source {
	return source{read: func(h *host.Host) map[string]value {
		all := map[string]value{}
		for _, p := range places(h, pattern) {
			if v := readValue(h, path.Join(p, below)); v.err == nil {
				all[name+"."+path.Base(p)] = v
			}
		}
		if len(all) == 0 {
			all[name] = value{err: fmt.Errorf("no file matches %s", path.Join(pattern, below))}
		}
		return all
	}}
}

// distinct is an item that all CPUs (or other places) should have in common: its values,
// each with the number of places where they differ.
func distinct(name, pattern string) source {
	return singleItem(name, false, func(h *host.Host) (string, error) { return common(h, places(h, pattern), "no file matches "+pattern) })
}

// common is the text of all the files, or each text with the number of files that have it; none is
// the error where no file can be read.
func common(h *host.Host, files []string, none string) (string, error) {
	count := map[string]int{}
	for _, p := range files {
		if v := readValue(h, p); v.err == nil {
			count[v.text]++
		}
	}
	switch len(count) {
	case 0:
		return "", errors.New(none)
	case 1:
		for text := range count {
			return text, nil
		}
	}
	var words []string
	for _, text := range slices.Sorted(maps.Keys(count)) {
		words = append(words, fmt.Sprintf("%s (%d)", text, count[text]))
	}
	return strings.Join(words, ", "), nil
}

// places are the paths inside the host that match a pattern.
func places(h *host.Host, pattern string) []string {
	found, err := filepath.Glob(h.Path(pattern))
	if err != nil {
		return nil
	}
	root := strings.TrimSuffix(h.Path("/"), "/")
	for i, p := range found {
		found[i] = strings.TrimPrefix(p, root)
	}
	return found
}

// kernelOption reads an option of the kernel's configuration: of the running kernel
// (IKCONFIG), otherwise from the file that distributions leave in /boot.
func kernelOption(h *host.Host, option string) (string, error) {
	release, _ := h.ReadValue("/proc/sys/kernel/osrelease")
	for _, name := range []string{"/proc/config.gz", "/boot/config-" + release} {
		f, err := os.Open(h.Path(name))
		if err != nil {
			continue
		}
		text, err := findOption(f, strings.HasSuffix(name, ".gz"), option)
		f.Close()
		if err == nil {
			return text, nil
		}
	}
	return "", errors.New("no kernel configuration in /proc/config.gz or /boot")
}

func findOption(r io.Reader, compressed bool, option string) (string, error) {
	if compressed {
		z, err := gzip.NewReader(r)
		if err != nil {
			return "", err
		}
		r = z
	}
	in := bufio.NewScanner(r)
	for in.Scan() {
		if text, ok := strings.CutPrefix(in.Text(), option+"="); ok {
			return text, nil
		}
	}
	return "n", in.Err()
}
