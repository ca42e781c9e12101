package env

import (
	"io"
	"strings"
	"testing"
)

func TestWhyAGuestDidNotComeUp(t *testing.T) {
	registers := strings.Repeat("[    2.9] RAX: 0000000000000004 RBX: 00007ffd949fc4f8\r\n", 40)
	for _, c := range []struct{ name, console, want string }{
		{"nothing", "", " without console output"},
		{"the end", registers + "[    3.0] reboot: machine restart\r\n", "[    3.0] reboot: machine restart"},
		{"a panic before its registers", "[    2.8] Kernel panic - not syncing: VFS: Unable to mount root fs\r\n" + registers,
			": kernel panic: VFS: Unable to mount root fs"},
		{"too little memory", "[    2.8] Kernel panic - not syncing: System is deadlocked on memory\r\n" + registers,
			": kernel panic: System is deadlocked on memory; give the environment more memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			last := &tail{to: io.Discard}
			for text := c.console; text != ""; {
				n := min(len(text), 100)
				if _, err := last.Write([]byte(text[:n])); err != nil {
					t.Fatal(err)
				}
				text = text[n:]
			}
			got := strings.Join(strings.Fields(last.bootFailure()), " ")
			if want := strings.Join(strings.Fields(c.want), " "); !strings.HasSuffix(got, want) || len(got) > mostSaid+50 {
				t.Errorf("%q, want it to end with %q", got, want)
			}
		})
	}
}
