package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/cluster/server"
	"github.com/quell-dev/quell/internal/format/atomicfile"
)

// The server's own credentials, and with them the key that signs commands, are replaced
// every day: a stolen copy is of no use after a week.
const (
	ownLife    = 7 * 24 * time.Hour
	renewEvery = 24 * time.Hour
)

// ownCredentials makes the server's own credentials, new ones at each start.
func ownCredentials(c *config.Server, a *authority.Authority) (string, error) {
	text, err := a.Issue(authority.Server, "quell-server", ownLife)
	if err != nil {
		return "", err
	}
	path := filepath.Join(keysDir(c), "server.creds")
	return path, atomicfile.Write(path, text, 0o600)
}

// keeper applies revocations and replaced keys to the embedded NATS server, renews the
// server's own credentials there, and watches when credentials expire.
type keeper struct {
	link *busConnection
	c    *config.Server
	log  *slog.Logger

	state   atomic.Pointer[server.Credentials]
	stamp   string // of the revocations and keys that are in force
	trust   authority.Trust
	renewed time.Time // its own credentials
	counted time.Time // those that are due
	due     []string  // as last logged
}

func newKeeper(link *busConnection, c *config.Server, log *slog.Logger, now time.Time) *keeper {
	k := &keeper{link: link, c: c, log: log, renewed: now, trust: link.trust}
	k.stamp = k.keysStamp()
	k.state.Store(&server.Credentials{})
	return k
}

// credentials implements server.Options.Credentials.
func (k *keeper) credentials() server.Credentials { return *k.state.Load() }

// sign gives an agent new credentials.
func (k *keeper) sign(machine, key string) ([]string, error) {
	a, err := authority.Load(keysDir(k.c))
	if err != nil {
		return nil, err
	}
	tokens, err := a.Renew(machine, key, time.Now())
	if errors.Is(err, authority.ErrNotDue) {
		return nil, nil // agents ask every day
	}
	return tokens, err
}

// serve answers agents' requests for new credentials until ctx ends. With an external NATS
// server the keys may be elsewhere.
func (k *keeper) serve(ctx context.Context) {
	if k.link.nats == nil {
		return
	}
	if err := k.link.bus.ServeRenewals(ctx, k.sign); err != nil {
		k.log.Error("agents' credentials are not renewed", "reason", err)
	}
}

// keepEvery is how soon revoked credentials become unusable.
const keepEvery = time.Second

// countEvery is how often the record of issued credentials is read.
const countEvery = 10 * time.Minute

// run works until ctx ends.
func (k *keeper) run(ctx context.Context) {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		k.step(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (k *keeper) step(now time.Time) {
	for what, err := range map[string]error{"apply revocations and keys": k.revoke(now), "renew the server's credentials": k.renew(now), "read credentials": k.count(now)} {
		if err != nil {
			k.log.Error(what+"; trying again", "reason", err)
		}
	}
}

// keysStamp changes when credentials are revoked or the signing key is replaced.
func (k *keeper) keysStamp() string {
	dir := keysDir(k.c)
	return stamp(authority.RevokedFile(dir)) + ", " + stamp(authority.SigningFile(dir))
}

// revoke applies what has changed in the files of keys, and the end of former keys.
func (k *keeper) revoke(now time.Time) error {
	stamp := k.keysStamp()
	ends := !k.trust.Until.IsZero() && !now.Before(k.trust.Until)
	if k.link.nats == nil || stamp == k.stamp && !ends {
		return nil
	}
	a, err := authority.Load(keysDir(k.c))
	if err != nil {
		return err
	}
	trust, err := a.Trust()
	if err != nil {
		return err
	}
	if err := k.link.nats.SetTrust(trust); err != nil {
		return err
	}
	switch {
	case trust.Signing != k.trust.Signing:
		k.renewed = time.Time{} // the server's own credentials are renewed too
		k.log.Info("the key that signs credentials was replaced", "credentials of the former valid until", trust.Until)
	case len(trust.Ended) != len(k.trust.Ended):
		k.log.Info("credentials that a former key signed are not valid any more")
	default:
		k.log.Info("credentials were revoked")
	}
	k.stamp, k.trust = stamp, trust
	return nil
}

// renew replaces the server's own credentials. The bus reads the file for each command
// that it signs and for each connection.
func (k *keeper) renew(now time.Time) error {
	if k.link.nats == nil || now.Sub(k.renewed) < renewEvery {
		return nil
	}
	a, err := authority.Load(keysDir(k.c))
	if err != nil {
		return err
	}
	if _, err := ownCredentials(k.c, a); err != nil {
		return err
	}
	k.renewed = now
	return nil
}

// count finds out which credentials should be renewed, and logs them when that changes.
func (k *keeper) count(now time.Time) error {
	if now.Sub(k.counted) < countEvery {
		return nil
	}
	k.counted = now
	var due []string
	own, err := credential.Load(k.link.own)
	if err != nil {
		return err
	}
	if k.link.nats == nil {
		if credential.Due(own.Issued, own.Expires, now) {
			due = append(due, "server "+own.Name)
		}
	} else {
		a, err := authority.Load(keysDir(k.c))
		if err != nil {
			return err
		}
		issued, err := a.Due(now)
		if err != nil {
			return err
		}
		for _, i := range issued {
			due = append(due, fmt.Sprintf("%s %s", i.Role, i.Name))
		}
	}
	k.state.Store(&server.Credentials{Expires: own.Expires, Due: len(due)})
	if !slices.Equal(due, k.due) && len(due) > 0 {
		k.log.Warn("credentials expire soon: make new ones", "number", len(due), "of", due[:min(len(due), 10)])
	}
	k.due = due
	return nil
}

// stamp returns a value that changes when a file is replaced.
func stamp(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.ModTime().UnixNano(), " ", info.Size())
}
