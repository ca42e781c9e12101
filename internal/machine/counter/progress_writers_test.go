package counter

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
	"golang.org/x/sys/unix"
)

// writers are the languages of docs/progress-file.md: the text around the writer for a
// program that does 1000 pieces of work, 3 at a time except for the last, and how it is
// built and run.
var writers = map[string]struct {
	file, around string // BODY is the writer
	needs        []string
	build, run   []string
}{
	"c": {file: "main.c", needs: []string{"cc"},
		around: "BODY\nint main(void) { progress_open(); for (int i = 0; i < 333; i++) progress_add(3); progress_add(1); return 0; }\n",
		build:  []string{"cc", "-Wall", "-Wextra", "-Werror", "-o", "main", "main.c"}, run: []string{"./main"}},
	"go": {file: "main.go", needs: []string{"go"},
		around: "BODY\nfunc main() {\n\tflush, err := progressOpen()\n\tif err != nil {\n\t\tpanic(err)\n\t}\n" +
			"\tfor range 333 {\n\t\tprogress.Add(3)\n\t}\n\tprogress.Add(1)\n\tflush()\n}\n",
		build: []string{"go", "build", "-o", "main", "main.go"}, run: []string{"./main"}},
	"python": {file: "main.py", needs: []string{"python3"},
		around: "BODY\nfor i in range(333): progress_add(3)\nprogress_add(1)\n", run: []string{"python3", "main.py"}},
	"java": {file: "Progress.java", needs: []string{"java", "javac"},
		around: "BODY\nclass Main { public static void main(String[] a) throws Exception { Progress.open(); for (int i = 0; i < 333; i++) Progress.add(3); Progress.add(1); } }\n",
		build:  []string{"javac", "-d", ".", "Progress.java"}, run: []string{"java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", ".", "Main"}},
	"rust": {file: "main.rs", needs: []string{"rustc"},
		around: "BODY\nfn main() -> io::Result<()> { let mut p = Progress::open()?; for _ in 0..333 { p.add(3)?; } p.add(1) }\n",
		build:  []string{"rustc", "--edition=2021", "-Dwarnings", "main.rs"}, run: []string{"./main"}},
	"sh": {file: "main.sh", needs: []string{"sh", "dd"},
		around: "BODY\nprogress_add 999\nprogress_add 1\n", run: []string{"sh", "main.sh"}},
}

// TestProgressWriters compiles and runs the writers as they stand in the docs.
func TestProgressWriters(t *testing.T) {
	text, err := os.ReadFile("../../../docs/progress-file.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, m := range regexp.MustCompile("(?s)```(\\w+)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		lang, body := m[1], m[2]
		w, ok := writers[lang]
		if !ok {
			t.Errorf("no test runs the writer in %s", lang)
			continue
		}
		found++
		t.Run(lang, func(t *testing.T) {
			t.Parallel()
			quelltest.Need(t, w.needs...)
			dir := t.TempDir()
			file := filepath.Join(dir, "progress")
			program := strings.Replace(w.around, "BODY", body, 1)
			if err := os.WriteFile(filepath.Join(dir, w.file), []byte(program), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, argv := range [][]string{w.build, w.run} {
				if argv == nil {
					continue
				}
				cmd := exec.Command(argv[0], argv[1:]...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "QUELL_PROGRESS="+file, "GO111MODULE=off", "CGO_ENABLED=0")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %v\n%s", argv, err, out)
				}
			}
			files := taskFiles{proc: "/proc"}
			fd, _, err := files.open(os.Getpid(), file)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			if n, err := readProgress(fd); n != 1000 || err != nil {
				t.Errorf("the file says %d, %v; want 1000", n, err)
			}
		})
	}
	if found != len(writers) {
		t.Errorf("%d writers in the docs, want %d", found, len(writers))
	}
}
