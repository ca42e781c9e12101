// Package authority controls access to the bus. It holds the keys that sign credentials.
// NATS servers, embedded or external, know only its public keys. Credentials are files in
// the NATS format: a JWT that states the holder's permissions and expiry, and a private
// key that is never sent over the network.
package authority

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/quell-dev/quell/internal/format/atomicfile"
	"github.com/quell-dev/quell/internal/format/wire"
)

// Authority issues credentials.
type Authority struct {
	dir                       string
	operator, account, system nkeys.KeyPair
}

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
	a := &Authority{dir: dir}
	for _, k := range []struct {
		name string
		pair *nkeys.KeyPair
		make func() (nkeys.KeyPair, error)
	}{
		{"operator.nk", &a.operator, nkeys.CreateOperator},
		{"account.nk", &a.account, nkeys.CreateAccount},
		{"system.nk", &a.system, nkeys.CreateAccount},
	} {
		if *k.pair, err = loadKey(filepath.Join(dir, k.name), k.make); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func loadKey(path string, create func() (nkeys.KeyPair, error)) (nkeys.KeyPair, error) {
	seed, err := os.ReadFile(path)
	if err == nil {
		pair, err := nkeys.FromSeed(seed)
		if err != nil {
			return nil, fmt.Errorf("load key %s: %w", path, err)
		}
		return pair, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load key: %w", err)
	}
	pair, err := create()
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", path, err)
	}
	if seed, err = pair.Seed(); err != nil {
		return nil, fmt.Errorf("make key %s: %w", path, err)
	}
	return pair, atomicfile.Write(path, seed, 0o600)
}

// Role is the role that credentials are issued for.
type Role string

// The roles.
const (
	// Agent may publish samples and records of its own machine, read specs, and answer
	// commands. It has no access to any other machine.
	Agent Role = "agent"
	// Server may do everything on the account.
	Server Role = "server"
	// Viewer may listen to samples, records and specs, and change nothing.
	Viewer Role = "viewer"
	// Operator may do what a viewer may do, and send commands to machines.
	Operator Role = "operator"
)

// Limits of a connection: the number of subscriptions (an agent has one for each job on
// its machine) and the size of a message in bytes.
const (
	maxSubscriptions = 10_000
	maxMessage       = 1 << 20
)

// Issue signs credentials for a machine's agent, or for a named holder in another role,
// and records that it did so. They expire after ttl; 0: never.
func (a *Authority) Issue(role Role, name string, ttl time.Duration) ([]byte, error) {
	if name == "" {
		return nil, errors.New("issue credentials: they need a name")
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		return nil, fmt.Errorf("issue credentials: %w", err)
	}
	public, err := user.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("issue credentials: %w", err)
	}
	c := jwt.NewUserClaims(public)
	c.Name = string(role) + "." + name
	if ttl != 0 {
		c.Expires = time.Now().Add(ttl).Unix()
	}
	if err := permit(c, role, name); err != nil {
		return nil, err
	}
	if role != Server {
		c.Limits.Subs, c.Limits.Payload = maxSubscriptions, maxMessage
	}
	token, err := c.Encode(a.account)
	if err != nil {
		return nil, fmt.Errorf("issue credentials: %w", err)
	}
	if err := a.remember(Issued{Role: role, Name: name, Key: public, At: c.IssuedAt, Expires: c.Expires}); err != nil {
		return nil, err
	}
	seed, err := user.Seed()
	if err != nil {
		return nil, fmt.Errorf("issue credentials: %w", err)
	}
	return jwt.FormatUserConfig(token, seed)
}

// permit sets the permissions of a role. Everything that is not listed is refused.
func permit(c *jwt.UserClaims, role Role, name string) error {
	inbox := "inbox." + wire.Token(name) + ".>"
	switch role {
	case Server:
		return nil // all permissions
	case Agent:
		c.Pub.Allow.Add(wire.SampleSubject(name), wire.RecordSubject(name), "$JS.API.DIRECT.GET.KV_specs.$KV.specs.>")
		c.Sub.Allow.Add(wire.AllSpecs, wire.CommandSubject(name), wire.CommandAll, inbox)
		// One answer to each command, on the reply subject that the command names.
		c.Resp = &jwt.ResponsePermission{MaxMsgs: 1, Expires: time.Minute}
	case Viewer, Operator:
		c.Sub.Allow.Add(wire.AllSamples, wire.AllRecords, wire.AllSpecs, inbox)
		c.Pub.Allow.Add("$JS.API.DIRECT.GET.KV_specs.$KV.specs.>")
		if role == Operator {
			c.Pub.Allow.Add("command.>")
		}
	default:
		return fmt.Errorf("issue credentials: role %q: want agent, viewer, operator or server", role)
	}
	return nil
}

// Trust is the information with which a NATS server accepts the holders of credentials:
// the operator and its accounts, as JWTs. It holds no secret.
type Trust struct {
	Operator              string
	Account, System       string // public keys
	AccountJWT, SystemJWT string
}

// Trust returns the authority's trust information.
func (a *Authority) Trust() (t Trust, err error) {
	operatorKey, err := a.operator.PublicKey()
	if err != nil {
		return t, fmt.Errorf("describe keys: %w", err)
	}
	if t.Account, err = a.account.PublicKey(); err != nil {
		return t, fmt.Errorf("describe keys: %w", err)
	}
	if t.System, err = a.system.PublicKey(); err != nil {
		return t, fmt.Errorf("describe keys: %w", err)
	}
	operator := jwt.NewOperatorClaims(operatorKey)
	operator.Name, operator.SystemAccount = "quell", t.System
	if t.Operator, err = operator.Encode(a.operator); err != nil {
		return t, fmt.Errorf("describe keys: %w", err)
	}
	account := jwt.NewAccountClaims(t.Account)
	account.Name = "quell"
	account.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	revoked, err := a.revoked()
	if err != nil {
		return t, err
	}
	for key, at := range revoked {
		account.RevokeAt(key, time.Unix(at, 0))
	}
	if t.AccountJWT, err = account.Encode(a.operator); err != nil {
		return t, fmt.Errorf("describe keys: %w", err)
	}
	system := jwt.NewAccountClaims(t.System)
	system.Name = "system"
	if t.SystemJWT, err = system.Encode(a.operator); err != nil {
		return t, fmt.Errorf("describe keys: %w", err)
	}
	return t, nil
}
