package fault

import "math/rand/v2"

// scenario is what happens between the kill and the next start, or in addition.
type scenario int

const (
	plain scenario = iota
	foreign
	foreignAlive
	removed
	remade
	full
	fullAlive
	readOnly
	cut
	flipped
	twice
	inRestore
	scenarios
)

var scenarioNames = [scenarios]string{"nothing else", "quota changed after the kill", "quota changed while capped", "cgroup removed", "cgroup removed and made again",
	"disk full at the restart", "disk full from the start", "state folder read-only", "journal's tail cut", "journal's bits flipped", "two crashes in a row", "killed in the restore"}

func (s scenario) String() string { return scenarioNames[s] }

// Lives, and the programs that restore.
const (
	lifeEnforce = "enforce" // package enforce alone, a cap every few ms
	lifeAgent   = "agent"   // quell-agent, caps requested through its socket

	backEnforce = "RestoreAll"
	backStart   = "agent start"
	backRestore = "restore"
	backOverdue = "restore --overdue"
)

// point is one of the points to kill at, with all its parameters. It follows
// from the seed and its number.
type point struct {
	n        int
	scenario scenario
	life     string
	target   phase
	second   phase // of the second kill, where there is one
	back     string
	before   limit
	rng      *rand.Rand
}

// The phases to kill at, in turn. inForce, where caps last longest, and
// anywhere, which is untraced, come more often.
var (
	lifeTargets = []phase{anywhere, intended, inForce, halfApplied, notRecorded, notAcknowledged, halfUndone, expired, inForce, intentNotSynced,
		acknowledgeNotSynced, recordNotSynced, anywhere, notIntended, rewriting, rewriteNotSynced, rewriteNotNamed, nameNotSynced}
	cappedTargets  = []phase{inForce, halfApplied, notAcknowledged, acknowledgeNotSynced, expired, halfUndone}
	restoreTargets = []phase{expired, halfUndone, notRecorded, recordNotSynced, rewriting, rewriteNotSynced, rewriteNotNamed, nameNotSynced}
)

func newPoint(seed uint64, n int) point {
	// The seed sets the first turn, so that short runs differ.
	turn := n/int(scenarios) + int(seed%997)
	p := point{n: n, scenario: scenario(n % int(scenarios)), rng: rand.New(rand.NewPCG(seed, uint64(n)))}
	p.life = []string{lifeEnforce, lifeAgent}[turn%2]
	half := turn/2 + n%int(scenarios)
	p.target, p.second = lifeTargets[half%len(lifeTargets)], lifeTargets[(half+p.rng.IntN(len(lifeTargets)))%len(lifeTargets)]
	switch p.scenario {
	case foreignAlive:
		p.life, p.target = lifeAgent, inForce
	case fullAlive:
		if half%2 == 0 { // by then the disk is full
			p.target = anywhere
		}
	case inRestore:
		p.target, p.second = cappedTargets[half%len(cappedTargets)], restoreTargets[half%len(restoreTargets)]
		if p.second == halfUndone { // needs two limits to put back
			p.target = inForce
		}
	}
	backs := []string{backStart, backRestore, backOverdue}
	if p.life == lifeEnforce {
		backs = []string{backEnforce, backRestore, backOverdue}
	}
	p.back = backs[p.rng.IntN(len(backs))]
	if p.scenario == inRestore && p.back == backOverdue {
		p.back = backRestore // or the restore that is killed would come too early to find anything
	}
	p.before = []limit{{"-1", "100000"}, {"200000", "100000"}, {"40000", "100000"}}[p.rng.IntN(3)]
	return p
}

// result is the outcome of a point, as a worker reports it.
type result struct {
	N        int      `json:"n"`
	Scenario scenario `json:"scenario"`
	Life     string   `json:"life"`
	Back     string   `json:"back"`
	Kills    []phase  `json:"kills"`           // the phases that were hit
	Restores []phase  `json:"restores"`        // of kills within a restore
	Capped   bool     `json:"capped"`          // a limit was not the original one at the last kill
	Wrong    []string `json:"wrong"`           // another process's value overwritten, or a cap where none may be
	Left     []string `json:"left"`            // quell's value is still there, or came back too late
	Late     float64  `json:"late"`            // s from the later of next start and deadline until all was back
	Site     string   `json:"site,omitempty"`  // the call that failed, "" if it was not made
	Fault    string   `json:"fault,omitempty"` // what happened to it
	Died     bool     `json:"died,omitempty"`  // the agent
	Err      string   `json:"err,omitempty"`
	Log      string   `json:"log,omitempty"` // the end of the programs' log, where something is wrong
}

func (r *result) bad() bool { return len(r.Wrong)+len(r.Left) > 0 || r.Err != "" }
