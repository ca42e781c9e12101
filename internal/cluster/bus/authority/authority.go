// Package authority controls access to the bus. It holds the keys that sign credentials.
// NATS servers, embedded or external, know only its public keys. Credentials are files
// (package credential): for each account of the bus a JWT that states the holder's
// permissions and expiry, and a private key that is never sent over the network.
package authority

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
)

// Authority issues credentials.
type Authority struct {
	dir      string
	operator nkeys.KeyPair
	system   string                        // public key
	accounts map[credential.Account]string // public keys
	signing  signing
}

// oneAccount is the key of the only account that quell had before there was one for each
// purpose.
const oneAccount = "account.nk"

// lockFile is locked while the directory is changed.
const lockFile = "lock"

// Load reads the keys in a directory and creates those that are missing. Only the owner
// may have access to the directory.
func Load(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of keys: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("load keys: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("load keys: others may read %s: chmod 0700 it", dir)
	}
	if _, err := os.Stat(filepath.Join(dir, oneAccount)); err == nil {
		return nil, fmt.Errorf("load keys: %s has %s, of an older quell-server that had one account for all: "+
			"let that one store what waits in its streams, move the file away, and issue all credentials again", dir, oneAccount)
	}
	a := &Authority{dir: dir, accounts: map[credential.Account]string{}}
	if err := a.locked(a.load); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Authority) load() (err error) {
	if a.operator, err = loadKey(filepath.Join(a.dir, "operator"+privateExt), nkeys.CreateOperator); err != nil {
		return err
	}
	if a.system, err = a.loadAccount("system"); err != nil {
		return err
	}
	for _, name := range credential.Accounts() {
		if a.accounts[name], err = a.loadAccount(string(name)); err != nil {
			return err
		}
	}
	return a.loadSigning()
}

// change calls f while no other process changes the directory, and with the key that signs now.
// Otherwise one of two revocations at the same time is lost, and what a machine has renewed
// meanwhile is valid after its credentials were revoked.
func (a *Authority) change(f func() error) error {
	return a.locked(func() error {
		if err := a.loadSigning(); err != nil {
			return err
		}
		return f()
	})
}

func (a *Authority) locked(f func() error) error {
	lock, err := os.OpenFile(filepath.Join(a.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock keys: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock keys: %w", err)
	}
	return f()
}

// Role is the role that credentials are issued for.
type Role string

// The roles. None of them is an operator's: operators act through the API, which checks
// who they are, records what they do, and signs their commands.
const (
	// Agent may publish samples, records and replies of its own machine, and read specs
	// and the commands to that machine. It has no access to any other machine.
	Agent Role = "agent"
	// Server may do everything where the buckets and the commands are, receives samples and
	// records, and signs commands.
	Server Role = "server"
	// Viewer may listen to samples, records and specs, and change nothing.
	Viewer Role = "viewer"
)

// Limits of a connection: the number of subscriptions, other than to specs (credential.MostSpecs), and the size of a
// message in bytes. A message is delivered once for each, as much as a client has to its own inbox, by the goroutine
// that delivers all agents' answers.
const (
	maxSubscriptions = 16
	maxMessage       = 1 << 20
)

// Issue signs credentials for a machine's agent, or for a named holder in another role,
// and records that it did so. They expire after ttl; 0: never. An agent may have those
// that expire renewed, for the same time.
func (a *Authority) Issue(role Role, name string, ttl time.Duration) ([]byte, error) {
	return a.issueNew(Issued{Role: role, Name: name, Renew: renewal(role, ttl)}, ttl)
}

// renewal is for how long credentials are renewed, s; 0: not at all.
func renewal(role Role, ttl time.Duration) int64 {
	if role != Agent {
		return 0
	}
	return int64(max(0, ttl).Seconds())
}

// Enrol signs credentials of a machine's agent that expire after ttl, and which the agent
// replaces at once by others for a key of its own. Those expire after life and are renewed.
func (a *Authority) Enrol(machine string, ttl, life time.Duration) ([]byte, error) {
	if ttl <= 0 || life <= 0 {
		return nil, errors.New("issue credentials: those for enrolment and those after it must expire")
	}
	return a.issueNew(Issued{Role: Agent, Name: machine, Renew: renewal(Agent, life), Enrol: true}, ttl)
}

// issueNew signs credentials for a new key.
func (a *Authority) issueNew(i Issued, ttl time.Duration) ([]byte, error) {
	public, seed, err := credential.NewKey()
	if err != nil {
		return nil, err
	}
	i.Key = public
	if ttl != 0 {
		i.Expires = time.Now().Add(ttl).Unix()
	}
	var pairs []credential.Pair
	err = a.change(func() error {
		tokens, err := a.issue(i)
		if err != nil {
			return err
		}
		pairs = append(pairs, credential.Pair{Tokens: tokens, Seed: seed})
		if i.Role == Server {
			signer, err := a.signer(i.Name, i.Expires)
			if err != nil {
				return err
			}
			pairs = append(pairs, signer, credential.Pair{Tokens: a.endorsements(time.Now())})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return credential.Format(pairs...)
}

// ErrNotDue means that credentials are not renewed yet.
var ErrNotDue = errors.New("the credentials are not due, or not renewable")

// cutOff is how long a machine's credentials are not renewed after some were revoked, s: until the bus has cut off who
// holds those, it may ask for what was issued to the machine since, before the machine does.
const cutOff = 15

// Renew signs credentials of a machine's agent for its new public key, if its newest ones
// are due or signed by a former key. The answer may be lost, or the agent's disk full: if it asks
// again for the same key it gets the same. The caller knows that it is the machine that asks.
func (a *Authority) Renew(machine, public string, now time.Time) (tokens []string, err error) {
	if !nkeys.IsValidPublicUserKey(public) {
		return nil, errors.New("renew credentials: the key is not valid")
	}
	if err := a.change(func() error { tokens, err = a.renew(machine, public, now); return err }); err != nil {
		return nil, err
	}
	return tokens, a.Sync()
}

func (a *Authority) renew(machine, public string, now time.Time) (tokens []string, err error) {
	all, err := a.issued(machine)
	if err != nil {
		return nil, err
	}
	holder := string(Agent) + "." + machine
	for _, i := range all {
		// NATS would let in again who holds a revoked key, with what is signed for it later.
		if string(i.Role)+"."+i.Name == holder && i.Revoked != 0 && (i.Key == public || now.Unix()-i.Revoked < cutOff) {
			return nil, fmt.Errorf("renew credentials of %.80q: some were revoked: %w", machine, ErrNotDue)
		}
	}
	i := newestOf(all)[holder]
	end := a.until(i.By)
	switch {
	// Those that have expired are renewed: the bus let the machine in, so that the record was restored from a copy.
	// Where their key has ended, the bus cuts the machine off within a second.
	case i.Renew == 0 || end != 0 && end <= now.Unix():
		return nil, fmt.Errorf("renew credentials of %.80q: %w", machine, ErrNotDue)
	case i.Enrol || i.By != a.signing.public() || credential.Due(time.Unix(i.At, 0), time.Unix(i.Expires, 0), now):
		tokens, err = a.issue(Issued{Role: Agent, Name: machine, Key: public, Expires: now.Unix() + i.Renew, Renew: i.Renew})
	case i.Key == public: // it is recorded already
		tokens, err = a.signAll(&i)
	default:
		return nil, fmt.Errorf("renew credentials of %.80q: %w", machine, ErrNotDue)
	}
	if err != nil {
		return nil, err
	}
	return append(tokens, a.endorsements(now)...), nil
}

// issue signs the JWTs of credentials and records them.
func (a *Authority) issue(i Issued) (tokens []string, err error) {
	if i.Name == "" {
		return nil, errors.New("issue credentials: they need a name")
	}
	if tokens, err = a.signAll(&i); err != nil {
		return nil, err
	}
	return tokens, a.remember(i)
}

// signAll signs the JWTs of credentials, and sets when and by which key.
func (a *Authority) signAll(i *Issued) (tokens []string, err error) {
	allowed, err := permissions(i.Role, i.Name)
	if err != nil {
		return nil, err
	}
	i.By = a.signing.public()
	for _, account := range credential.Accounts() {
		may, ok := allowed[account]
		if !ok {
			continue
		}
		c := jwt.NewUserClaims(i.Key)
		c.Name, c.Expires, c.Permissions = string(i.Role)+"."+i.Name, i.Expires, may
		c.Tags.Add(account.Tag())
		if i.Renew != 0 {
			c.Tags.Add(credential.RenewTag)
		}
		if i.Enrol {
			c.Tags.Add(credential.EnrolTag)
		}
		if i.Role != Server {
			c.Limits.Subs, c.Limits.Payload = maxSubscriptions, maxMessage
			if account == credential.Specs {
				c.Limits.Subs = credential.MostSpecs
			}
		}
		token, err := a.sign(c, account)
		if err != nil {
			return nil, err
		}
		tokens, i.At = append(tokens, token), c.IssuedAt
	}
	return tokens, nil
}

// signer makes a key that signs commands. It is a separate one: a NATS server may have a
// client's own key sign any challenge. Its JWT permits no message.
func (a *Authority) signer(name string, expires int64) (p credential.Pair, err error) {
	public, seed, err := credential.NewKey()
	if err != nil {
		return p, err
	}
	c := jwt.NewUserClaims(public)
	c.Name, c.Expires = string(Server)+"."+name, expires
	c.Tags.Add(credential.SignerTag)
	c.Pub.Deny.Add(">")
	c.Sub.Deny.Add(">")
	token, err := a.sign(c, credential.Commands)
	if err != nil {
		return p, err
	}
	return credential.Pair{Tokens: []string{token}, Seed: seed}, nil
}

// permissions are those of a role, by account. What is not listed is refused.
func permissions(role Role, name string) (map[credential.Account]jwt.Permissions, error) {
	inbox := "inbox." + wire.Token(name) + ".>"
	allow := func(publish, subscribe jwt.StringList) jwt.Permissions {
		return jwt.Permissions{Pub: jwt.Permission{Allow: publish}, Sub: jwt.Permission{Allow: subscribe}}
	}
	specs := jwt.Permissions{Pub: jwt.Permission{Deny: jwt.StringList{">"}}, Sub: jwt.Permission{Allow: jwt.StringList{wire.AllSpecs}}}
	switch role {
	case Server:
		return map[credential.Account]jwt.Permissions{
			credential.Store: {}, credential.Commands: {},
			// It answers into machines' inboxes.
			credential.Samples: allow(jwt.StringList{"inbox.*.>"}, jwt.StringList{wire.AllSamples, wire.AllRecords, inbox}),
		}, nil
	case Agent:
		return map[credential.Account]jwt.Permissions{
			credential.Samples: allow(jwt.StringList{wire.SampleSubject(name), wire.RecordSubject(name)}, jwt.StringList{inbox}),
			credential.Specs:   specs,
			// Replies have subjects of the machine's own, so that the bus checks whose they are.
			credential.Commands: allow(jwt.StringList{wire.OwnReplies(name), wire.RenewalSubject(name)},
				jwt.StringList{wire.CommandSubject(name), wire.CommandAll, wire.RenewedSubject(name)}),
		}, nil
	case Viewer:
		return map[credential.Account]jwt.Permissions{
			credential.Samples: {Pub: jwt.Permission{Deny: jwt.StringList{">"}}, Sub: jwt.Permission{Allow: jwt.StringList{wire.AllSamples, wire.AllRecords}}},
			credential.Specs:   specs,
		}, nil
	}
	return nil, fmt.Errorf("issue credentials: role %q: want agent, viewer or server", role)
}

// share sets what crosses from one account to another: what servers say of specs, to those who read them.
func share(name credential.Account, store string, c *jwt.AccountClaims) {
	switch name {
	case credential.Store:
		c.Exports.Add(&jwt.Export{Name: wire.AllSpecs, Subject: wire.AllSpecs, Type: jwt.Stream})
		c.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	case credential.Specs:
		c.Imports.Add(&jwt.Import{Name: wire.AllSpecs, Subject: wire.AllSpecs, Account: store, Type: jwt.Stream})
	}
}
