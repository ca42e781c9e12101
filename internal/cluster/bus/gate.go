package bus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/atomicfile"
	"github.com/quell-dev/quell/internal/format/wire"
)

// maxAhead is how far a server's clock may be ahead of the agent's.
const maxAhead = 10 * time.Minute

// gate holds the decisions that stand for an agent's machine. It lets in only those that its
// server has signed for this machine or for all, and never goes back to an older revision. It
// keeps them in the uplink's directory, so that this also holds for the agent's next run, and
// that run has them if it starts without the server.
type gate struct {
	machine, dir string
	credentials  string

	mu      sync.Mutex
	held    map[string]*wire.Decisions // by the machine they are for; "": for all
	told    [2]uint64                  // revisions that the agent has been told of: for all, own
	keeping problem                    // why they cannot be kept
}

// refusedError is why decisions that a server has signed are not followed.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return "refused: " + e.reason }

// openGate reads what an earlier run kept. What cannot be read comes again from the server.
func openGate(machine, dir, credentials string) *gate {
	g := &gate{machine: machine, dir: dir, credentials: credentials, held: map[string]*wire.Decisions{}}
	for _, of := range []string{"", machine} {
		text, err := os.ReadFile(g.file(of))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		d := &wire.Decisions{}
		if err == nil {
			err = wire.Unmarshal(text, d)
		}
		if err == nil && d.Machine != of { // the directory is of a machine that was renamed
			continue
		}
		if err != nil {
			g.keeping.set(fmt.Errorf("read stored decisions: %w", err))
			continue
		}
		g.held[of] = d
	}
	g.tell()
	return g
}

// tell records that the agent has been told of what is held.
func (g *gate) tell() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, of := range []string{"", g.machine} {
		if d := g.held[of]; d != nil {
			g.told[i] = d.Revision
		}
	}
}

func (g *gate) file(of string) string {
	if of == "" {
		return filepath.Join(g.dir, "decisions-all")
	}
	return filepath.Join(g.dir, "decisions-machine")
}

// open takes the decisions of a message. changed is false if it has them already.
func (g *gate) open(data []byte, now time.Time) (changed bool, err error) {
	var signed wire.SignedDecisions
	if err := wire.Unmarshal(data, &signed); err != nil {
		return false, err
	}
	if g.credentials == "" {
		return false, errors.New("without server.credentials it cannot be known who signed it")
	}
	f, err := credential.Load(g.credentials) // it may have been replaced
	if err != nil {
		return false, err
	}
	if _, err := f.Verify(signed.Decisions, credential.Signature{Signer: signed.Signer, Endorsements: signed.Endorsements, Bytes: signed.Signature}, now); err != nil {
		return false, err
	}
	d := &wire.Decisions{}
	if err := wire.Unmarshal(signed.Decisions, d); err != nil {
		return false, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.check(d, now); err != nil {
		return false, err
	}
	if old := g.held[d.Machine]; old != nil && old.Revision == d.Revision {
		return false, nil
	}
	g.held[d.Machine] = d
	// If the disk is full they hold all the same: an operator may have ended enforcement.
	text, err := wire.Marshal(d)
	if err == nil {
		err = atomicfile.Write(g.file(d.Machine), text, 0o600)
	}
	if err != nil {
		err = fmt.Errorf("keep decisions: %w", err)
	}
	g.keeping.set(err)
	return true, nil
}

func (g *gate) check(d *wire.Decisions, now time.Time) error {
	refuse := func(format string, args ...any) error { return &refusedError{fmt.Sprintf(format, args...)} }
	when := func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
	held := g.held[d.Machine]
	switch {
	case d.Machine != "" && d.Machine != g.machine:
		return refuse("the decisions are for the machine %s", d.Machine)
	case held != nil && d.Revision == held.Revision:
		return nil
	case held != nil && d.Revision < held.Revision:
		return refuse("the decisions are of revision %d, and those of %d have come", d.Revision, held.Revision)
	case d.Revision == 0:
		return refuse("the decisions have no revision")
	case d.Signed > now.Add(maxAhead).UnixMilli():
		return refuse("the decisions were signed at %s by the server's clock, which is ahead of this one", when(d.Signed))
	case now.UnixMilli() > d.Fresh:
		return refuse("the decisions were to be received by %s by the server's clock", when(d.Fresh))
	case d.Fresh-d.Signed > freshFor.Milliseconds():
		return refuse("the decisions may be received for longer than %s", freshFor)
	}
	return nil
}

// list returns what stands, for all first.
func (g *gate) list() (all []*wire.Command) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, of := range []string{"", g.machine} {
		if d := g.held[of]; d != nil {
			all = append(all, d.List...)
		}
	}
	return all
}

// revisions are those that the agent has been told of.
func (g *gate) revisions() [2]uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.told
}

// Decisions returns the commands that the server has decided for this machine and for all. An
// agent without a server has none.
func (u *Uplink) Decisions() []*wire.Command {
	if u.gate == nil {
		return nil
	}
	return u.gate.list()
}

const (
	// reportEvery is how often a machine says what it has although nothing has changed.
	reportEvery = time.Minute
	// reportSoon bounds how often it does when things change.
	reportSoon = 100 * time.Millisecond
)

// Report sets what the agent says of its decisions; the uplink adds machine and revisions and
// sends it soon, and again at each connection and once a minute. The caller does not change s
// afterwards.
func (u *Uplink) Report(s *wire.State) {
	u.state.Store(s)
	nudge(u.reports)
}

// report sends the state until ctx ends.
func (u *Uplink) report(ctx context.Context) {
	for ctx.Err() == nil {
		epoch := u.commands.epoch()
		changed := u.commands.changed(epoch)
		if u.commands.nc.IsConnected() {
			if err := u.sendState(); err != nil {
				u.commands.reason.set(err)
			}
		}
		timer := time.NewTimer(reportEvery + rand.N(reportEvery/10))
		select {
		case <-ctx.Done():
		case <-changed:
		case <-u.reports:
			u.commands.wait(ctx, epoch, reportSoon)
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (u *Uplink) sendState() error {
	s := &wire.State{}
	if last := u.state.Load(); last != nil {
		s = &wire.State{Agent: last.Agent, Mode: last.Mode, From: last.From, By: last.By, Outcomes: last.Outcomes}
	}
	revisions := u.gate.revisions()
	s.Machine, s.All, s.Own = u.machine, revisions[0], revisions[1]
	data, err := wire.Marshal(s)
	if err == nil && len(data) > mostState {
		s.Outcomes = shortened(s.Outcomes)
		data, err = wire.Marshal(s)
	}
	if err != nil {
		return err
	}
	return u.commands.nc.Publish(wire.StateSubject(u.machine), data)
}

// mostState is the size of a state, bytes, above which its texts are shortened: NATS takes none of 1 MB, and
// several decisions about a thousand tasks each, all of which are refused, are more. A machine of which the
// server hears nothing looks as if it were away.
const mostState = 256 << 10

// shortened returns outcomes with the beginnings of their texts, and of the first refusals.
func shortened(all []*wire.Reply) (short []*wire.Reply) {
	const texts, bytes = 5, 160
	begin := func(text string) string {
		if len(text) <= bytes {
			return text
		}
		return strings.ToValidUTF8(text[:bytes], "") + " …"
	}
	for _, r := range all {
		c := &wire.Reply{Id: r.Id, Ok: r.Ok, None: r.None, Message: begin(r.Message), Cap: r.Cap, Tasks: r.Tasks}
		for _, why := range r.Refused[:min(len(r.Refused), texts)] {
			c.Refused = append(c.Refused, begin(why))
		}
		if more := len(r.Refused) - texts; more > 0 {
			c.Refused = append(c.Refused, fmt.Sprintf("%d more", more))
		}
		short = append(short, c)
	}
	return short
}

// decided takes a message of the server's decisions. A message that no server of this agent's
// authority has signed is counted.
func (u *Uplink) decided(ctx context.Context, message []byte) {
	changed, err := u.gate.open(message, time.Now())
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		u.warn("decisions were refused", "reason", err)
	case err != nil:
		u.forged.Add(1)
		u.warn("a message that is no decision of the server was dropped", "reason", err)
	case changed:
		u.options.Decided(ctx)
		u.gate.tell()
		nudge(u.reports)
	default: // the server has started, and asks what this machine has
		nudge(u.reports)
	}
}
