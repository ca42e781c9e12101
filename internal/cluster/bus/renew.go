package bus

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/atomicfile"
	"github.com/quell-dev/quell/internal/format/wire"
)

const (
	// readEvery is how soon the end of renewed credentials is known. The bus reads the file
	// again for each connection.
	readEvery = 10 * time.Second
	// renewPause is between an agent's requests. The server answers a machine twice as often.
	renewPause = time.Minute
	// renewWait is how long an answer may take.
	renewWait = 10 * time.Second
	// askEvery is how often an agent asks for credentials that are not due: the server signs
	// new ones if the key that signed the present ones was replaced.
	askEvery = 24 * time.Hour
)

// watchCredentials reads the file of credentials from time to time and has them renewed.
func (u *Uplink) watchCredentials(ctx context.Context) {
	tick := time.NewTicker(cmp.Or(u.options.read, readEvery))
	defer tick.Stop()
	every := cmp.Or(u.options.ask, askEvery)
	var asked time.Time
	ask := time.Now().Add(rand.N(every)) // for those that are not due; not all at once after a restart of many
	for {
		now := time.Now()
		f := u.credentials.Load()
		connected := u.commands.changed(u.commands.epoch()) // closed when there is a new connection
		due := f != nil && (f.Enrols || credential.Due(f.Issued, f.Expires, now))
		if f != nil && f.Renewable && u.commands.nc.IsConnected() && (due && now.Sub(asked) >= renewPause || !now.Before(ask)) {
			asked, ask = now, now.Add(every)
			err := u.renew(ctx, f)
			if !due { // it may be refused
				err = nil
			}
			u.renewing.set(err)
			u.readCredentials()
		}
		select {
		case <-ctx.Done():
			return
		case <-connected:
		case <-tick.C:
			u.readCredentials()
		}
	}
}

func (u *Uplink) readCredentials() {
	f, err := credential.Load(u.options.Credentials)
	if err == nil {
		u.credentials.Store(f)
		if f.Name != u.machine { // the bus refuses each of its messages, and NATS answers nothing
			err = fmt.Errorf("%s is of %s %s, and this machine is called %s: set machine to that name, or replace the file, with the output of quell-server credentials agent %s",
				u.options.Credentials, f.Role, f.Name, u.machine, u.machine)
		}
	}
	u.unreadable.set(err)
}

// newKey is a key for which an agent asks for credentials, in the place of those for another key.
type newKey struct {
	of, public string // public keys
	seed       []byte
}

// keyFile has the private key for which credentials were asked and not received, after the public key of
// the present ones.
func (u *Uplink) keyFile() string { return filepath.Join(u.options.Dir, "renewal-key") }

// askFor sets the key for which credentials are asked in the place of f. It is the same until there are
// some, also after a restart: the server may have recorded it, and gives this machine no credentials for
// another key until those are due.
func (u *Uplink) askFor(f *credential.File) error {
	of, err := f.Key()
	if err != nil || u.asks.of == of {
		return err
	}
	k := newKey{of: of}
	if text, err := os.ReadFile(u.keyFile()); err == nil {
		before, seed, _ := bytes.Cut(text, []byte("\n"))
		if k.public, err = credential.PublicKey(seed); err == nil && string(before) == of {
			k.seed = seed
			u.asks = k
			return nil
		}
	}
	if k.public, k.seed, err = credential.NewKey(); err != nil {
		return err
	}
	u.asks = k
	_ = atomicfile.Write(u.keyFile(), append([]byte(of+"\n"), k.seed...), 0o600) // if this disk is full, the credentials may be on another
	return nil
}

// renew has the server sign credentials for a new key, which does not leave this machine,
// and replaces the file.
func (u *Uplink) renew(ctx context.Context, f *credential.File) (err error) {
	if err := u.askFor(f); err != nil {
		return err
	}
	ask, err := wire.Marshal(&wire.Renewal{Machine: u.machine, Key: u.asks.public})
	if err != nil {
		return err
	}
	answers, err := u.commands.nc.SubscribeSync(wire.RenewedSubject(u.machine))
	if err != nil {
		return fmt.Errorf("renew credentials: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }() // of a lost connection: gone with it
	if err := u.commands.nc.Publish(wire.RenewalSubject(u.machine), ask); err != nil {
		return fmt.Errorf("renew credentials: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, renewWait)
	defer cancel()
	var r wire.Renewed
	for read := false; !read; { // what is of another type answers a question for specs
		m, err := answers.NextMsgWithContext(ctx)
		if err != nil {
			return fmt.Errorf("renew credentials: no server answers: %w", err)
		}
		read = wire.Unmarshal(m.Data, &r) == nil
	}
	if r.Refused != "" {
		return fmt.Errorf("renew credentials: the server refuses: %s", cut(r.Refused))
	}
	text, err := f.Renewed(r.Tokens, u.asks.seed, time.Now())
	if err != nil {
		return err
	}
	if err := atomicfile.Write(u.options.Credentials, text, 0o600); err != nil {
		return fmt.Errorf("renew credentials: %w", err)
	}
	u.asks = newKey{}
	_ = os.Remove(u.keyFile()) // a key that is left there is not used again
	return nil
}

// Expires returns when the credentials expire, zero if never or if there are none, and why
// they need attention.
func (u *Uplink) Expires(now time.Time) (at time.Time, due error) {
	f, due := u.credentials.Load(), u.unreadable.get()
	if f == nil {
		return at, due
	}
	renewing := u.renewing.get()
	if due == nil && (credential.Due(f.Issued, f.Expires, now) && (!f.Renewable || renewing != nil) || f.Enrols && renewing != nil) {
		due = fmt.Errorf("%s expires at %s: replace it, with the output of quell-server credentials agent %s", u.options.Credentials, f.Expires.UTC().Format(time.RFC3339), f.Name)
		due = errors.Join(due, renewing)
	}
	return f.Expires, due
}

// ServeRenewals answers machines' requests for new credentials until ctx ends. The bus has
// checked which machine asks; renew signs JWTs for its new key, none if they are not due.
func (b *Bus) ServeRenewals(ctx context.Context, renew func(machine, key string) ([]string, error)) error {
	nc := b.commands.link.nc
	requests := newInbox(renewWait / 2) // thousands may be due at once, and ask each minute
	sub, err := nc.QueueSubscribe(wire.AllRenewals, "servers", requests.put)
	if err != nil {
		return fmt.Errorf("answer requests for credentials: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	answered := map[string]time.Time{} // by subject: as many as there are machines with credentials
	for m := requests.next(ctx); m != nil; m = requests.next(ctx) {
		now := time.Now()
		if now.Sub(answered[m.Subject]) < renewPause/2 {
			continue
		}
		answered[m.Subject] = now
		var r wire.Renewal
		err := wire.Unmarshal(m.Data, &r)
		if err == nil && wire.RenewalSubject(r.Machine) != m.Subject {
			err = &ForgedError{m.Subject, r.Machine}
		}
		if err != nil {
			b.log.Warn("a request for credentials was dropped", "subject", m.Subject, "reason", err)
			continue
		}
		answer := &wire.Renewed{Machine: r.Machine}
		if answer.Tokens, err = renew(r.Machine, r.Key); err != nil {
			answer.Refused = err.Error()
			b.log.Warn("credentials were not renewed", "machine", r.Machine, "reason", err)
		} else if answer.Tokens == nil {
			answer.Refused = "they are not due, or not renewable"
		} else {
			b.log.Info("credentials were renewed", "machine", r.Machine)
		}
		data, err := wire.Marshal(answer)
		if err == nil {
			err = nc.Publish(wire.RenewedSubject(r.Machine), data)
		}
		if err != nil {
			b.log.Warn("answer a request for credentials", "machine", r.Machine, "reason", err)
		}
	}
	return nil
}
