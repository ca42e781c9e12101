//go:build inguest

package v2

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/people/demo"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The demo on CPUs that alternate, as QEMU's do here: a wait that looks like contention
// may be caused by no task. The demo may abstain, and then gives the reason. It must not
// name an innocent task and must leave nothing behind.
func TestDemoOnCPUsThatTakeTurns(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	cmd := exec.Command("/bin/quell", "demo", "--seed", "1", "--json")
	var story bytes.Buffer
	cmd.Stderr = &story
	out, err := cmd.Output()
	t.Logf("%v\n%s%s", err, story.String(), out)
	const words = "take turns here"
	if len(out) == 0 && strings.Contains(story.String(), words) {
		t.Log("figure: the demo did not come to a result in its time, and says that the CPUs take turns")
		return
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var r demo.Result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		t.Fatal(err)
	}
	if r.Named != "" && r.Named != r.Antagonist || len(r.LeftBehind) > 0 {
		t.Errorf("%+v", r)
	}
	if !r.OK && !strings.Contains(r.Excuse, words) {
		t.Errorf("%s, and no word of why: %q", r.Verdict, r.Excuse)
	}
	t.Logf("figure: the demo: %s. %s", r.Verdict, r.Excuse)
}
