package authority

import (
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/jwt/v2"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
)

// Trust is the information with which a NATS server accepts the holders of credentials:
// the operator and its accounts, as JWTs. It holds no secret.
type Trust struct {
	Operator string
	System   string                        // public key of the system account
	Accounts map[credential.Account]string // public keys
	JWTs     map[string]string             // of all accounts, by public key
	Signing  string                        // public key that signs credentials now; empty: each account's own
	Ended    []string                      // public keys whose credentials are not valid any more
	Until    time.Time                     // when another key joins those; zero: none will
}

// Trust returns the authority's trust information.
func (a *Authority) Trust() (t Trust, err error) {
	operatorKey, err := a.operator.PublicKey()
	if err != nil {
		return t, fmt.Errorf("describe keys: %w", err)
	}
	revoked, err := a.revoked()
	if err != nil {
		return t, err
	}
	now := time.Now()
	t = Trust{System: a.system, Accounts: maps.Clone(a.accounts), JWTs: map[string]string{}, Signing: a.signing.public()}
	for _, p := range a.signing.Previous {
		switch until := time.Unix(p.Until, 0); {
		case !now.Before(until):
			t.Ended = append(t.Ended, p.Key)
		case t.Until.IsZero() || until.Before(t.Until):
			t.Until = until
		}
	}
	account := func(name, key string, change func(*jwt.AccountClaims)) error {
		c := jwt.NewAccountClaims(key)
		c.Name = name
		change(c)
		if t.JWTs[key], err = c.Encode(a.operator); err != nil {
			return fmt.Errorf("describe keys: %w", err)
		}
		return nil
	}
	if err := account("system", a.system, func(*jwt.AccountClaims) {}); err != nil {
		return t, err
	}
	for name, key := range a.accounts {
		if err := account("quell-"+string(name), key, func(c *jwt.AccountClaims) {
			share(name, a.accounts[credential.Store], c)
			for key, at := range revoked {
				c.RevokeAt(key, time.Unix(at, 0))
			}
			a.accept(c, now)
		}); err != nil {
			return t, err
		}
	}
	operator := jwt.NewOperatorClaims(operatorKey)
	operator.Name, operator.SystemAccount = "quell", t.System
	if t.Operator, err = operator.Encode(a.operator); err != nil {
		return t, fmt.Errorf("describe keys: %w", err)
	}
	return t, nil
}

// accept sets the keys whose credentials an account accepts.
func (a *Authority) accept(c *jwt.AccountClaims, now time.Time) {
	if key := a.signing.public(); key != "" {
		c.SigningKeys.Add(key)
	}
	for _, p := range a.signing.Previous {
		valid := now.Unix() < p.Until
		switch {
		case p.Key == a.accounts[credential.Commands] && !valid:
			// NATS accepts the account's own key for ever. What it signed before it was
			// replaced is revoked.
			c.RevokeAt(jwt.All, time.Unix(p.Replaced-1, 0))
		case valid && p.Key != a.accounts[credential.Commands]:
			c.SigningKeys.Add(p.Key)
		}
	}
}
