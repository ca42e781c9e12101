package sample

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A task's name is a path of cgroups, which may have any bytes but "/" and zero as their names.
// Its text form is the name itself if that is UTF-8 and does not begin with a quotation mark, and
// otherwise the name quoted as in Go. It can be read back, so that a task of any name can be
// written down and named by operators. JSON has the text form.

// Text returns the text form.
func (n TaskName) Text() string { return NameText(string(n)) }

// String returns the name for people: the text form, quoted also if it has characters that a
// terminal does not just print.
func (n TaskName) String() string { return printed(string(n)) }

// String returns the name for people, quoted if it has characters that a terminal does not just print.
func (n JobName) String() string { return printed(string(n)) }

// MarshalText implements encoding.TextMarshaler.
func (n TaskName) MarshalText() ([]byte, error) { return []byte(n.Text()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *TaskName) UnmarshalText(text []byte) error {
	name, err := ParseName(string(text))
	*n = TaskName(name)
	return err
}

// NameText is TaskName.Text for any path below a cgroup hierarchy.
func NameText(name string) string {
	if !strings.HasPrefix(name, `"`) && utf8.ValidString(name) {
		return name
	}
	return strconv.Quote(name)
}

// ParseName reads a text form, also one that is quoted although it need not be.
func ParseName(text string) (string, error) {
	if !strings.HasPrefix(text, `"`) {
		return text, nil
	}
	name, err := strconv.Unquote(text)
	if err != nil {
		return "", fmt.Errorf("name %.40q: want a path, or one quoted as in Go: \"/a\\xff\"", text)
	}
	return name, nil
}

// leastID is how many characters of a container's id name it.
const leastID = 12

// IsNamed reports whether a text names the task: its name or cgroup path, the last parts of one of them
// from a "/" on, or at least 12 characters of the id of its container. A text may name several tasks.
func (t *Task) IsNamed(text string) bool {
	if text == "" {
		return false
	}
	tail := "/" + strings.TrimPrefix(text, "/")
	for _, name := range [...]string{string(t.Name), t.Path()} {
		if name == text || strings.HasSuffix(name, tail) {
			return true
		}
	}
	return len(text) >= leastID && isHex(text) && strings.HasPrefix(ContainerID(t.Path()), text)
}

// ContainerID is the id of the container that a cgroup's path ends with, at least 12 hexadecimal
// digits: after the name of the runtime ("docker-ID.scope"), or alone; "" if there is none, as for
// the conmon that serves a container.
func ContainerID(path string) string {
	name := strings.TrimSuffix(path[strings.LastIndexByte(path, '/')+1:], ".scope")
	i := strings.LastIndexAny(name, "-:") + 1
	id := name[i:]
	if len(id) < leastID || !isHex(id) || strings.HasSuffix(name[:i], "conmon-") {
		return ""
	}
	return id
}

func isHex(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}

func printed(name string) string {
	plain := !strings.HasPrefix(name, `"`)
	for _, r := range name {
		plain = plain && r != utf8.RuneError && strconv.IsPrint(r)
	}
	if plain {
		return name
	}
	return strconv.Quote(name)
}
