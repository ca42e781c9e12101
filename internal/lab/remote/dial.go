package remote

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"
)

// patience is the default of Options.Patience.
const patience = 20 * time.Second

// KeyError is a host whose key is not known, or differs from the known one.
type KeyError struct {
	Host, Address string
	Fingerprint   string // of the key that the host presented
	Known         bool   // a different key is known
}

func (e *KeyError) Error() string {
	if e.Known {
		return fmt.Sprintf("host %s (%s): the host key has changed to %s: a machine in the middle is possible", e.Host, e.Address, e.Fingerprint)
	}
	return fmt.Sprintf("host %s (%s): unknown host key %s", e.Host, e.Address, e.Fingerprint)
}

// Remedy says how to fix it.
func (e *KeyError) Remedy() string {
	if e.Known {
		return "find out why the key changed; if the change is expected, replace it in known_hosts or the inventory (host_key)"
	}
	return "compare it with the output of `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the host, then add it to known_hosts (ssh-keyscan) or the inventory (host_key)"
}

func parseHostKey(line string) (ssh.PublicKey, error) {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	return key, err
}

// connect logs in, through other hosts if configured. closers end all its connections.
func connect(ctx context.Context, inv *Inventory, s *HostConfig, patience time.Duration) (client *ssh.Client, closers []func() error, err error) {
	closeAll := func() {
		for _, c := range slices.Backward(closers) {
			_ = c() // errors no longer matter
		}
	}
	defer func() {
		if err != nil {
			closeAll()
			client, closers = nil, nil
		}
	}()
	address := withPort(s.Address)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	dial := (&net.Dialer{}).DialContext
	if s.Jump != "" {
		via, more, err := connect(ctx, inv, inv.Lookup(s.Jump), patience)
		if err != nil {
			return nil, nil, fmt.Errorf("through %s: %w", s.Jump, err)
		}
		closers, dial = append(closers, more...), via.DialContext
	}
	config, done, err := s.config(address)
	if err != nil {
		return nil, closers, err
	}
	defer done()
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, closers, fmt.Errorf("reach host %s: %w", s.Name, err)
	}
	closers = append(closers, conn.Close)
	// The handshake has no context; closing the connection ends it.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	c, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if err != nil {
		var key *KeyError
		if errors.As(err, &key) {
			key.Host = s.Name
			return nil, closers, key
		}
		return nil, closers, fmt.Errorf("log in on host %s: %w", s.Name, errors.Join(err, ctx.Err()))
	}
	return ssh.NewClient(c, channels, requests), closers, nil
}

func withPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), "22")
}

// config is the SSH configuration for the host. done must be called after the handshake.
func (s *HostConfig) config(address string) (c *ssh.ClientConfig, done func(), err error) {
	c = &ssh.ClientConfig{User: s.User, Timeout: patience}
	if c.User == "" {
		c.User = "root"
	}
	if c.HostKeyCallback, c.HostKeyAlgorithms, err = s.hostKeys(address); err != nil {
		return nil, nil, err
	}
	methods, done, err := s.login()
	if err != nil {
		return nil, nil, err
	}
	c.Auth = methods
	return c, done, nil
}

// hostKeys returns which keys are accepted from the host.
func (s *HostConfig) hostKeys(address string) (ssh.HostKeyCallback, []string, error) {
	if s.HostKey != "" {
		want, err := parseHostKey(s.HostKey)
		if err != nil {
			return nil, nil, fmt.Errorf("host %s: parse host_key: %w", s.Name, err)
		}
		return func(_ string, _ net.Addr, key ssh.PublicKey) error {
			if key.Type() == want.Type() && string(key.Marshal()) == string(want.Marshal()) {
				return nil
			}
			return &KeyError{Address: address, Fingerprint: ssh.FingerprintSHA256(key), Known: true}
		}, algorithms(want.Type()), nil
	}
	file := expand(s.KnownHosts)
	if file == "" {
		file = expand("~/.ssh/known_hosts")
	}
	known, err := knownhosts.New(file)
	if errors.Is(err, fs.ErrNotExist) {
		known = func(string, net.Addr, ssh.PublicKey) error { return &knownhosts.KeyError{} } // no host is known
	} else if err != nil {
		return nil, nil, fmt.Errorf("host %s: read known hosts: %w", s.Name, err)
	}
	// A server has several keys and presents the first one that both sides support: the
	// client must ask for one that is known.
	var wanted []string
	var is *knownhosts.KeyError
	if errors.As(known(address, &net.TCPAddr{}, noKey{}), &is) {
		for _, k := range is.Want {
			wanted = append(wanted, algorithms(k.Key.Type())...)
		}
	}
	return func(host string, remote net.Addr, key ssh.PublicKey) error {
		err := known(host, remote, key)
		var not *knownhosts.KeyError
		if errors.As(err, &not) {
			return &KeyError{Address: address, Fingerprint: ssh.FingerprintSHA256(key), Known: len(not.Want) > 0}
		}
		return err
	}, wanted, nil
}

// algorithms are the signature algorithms of a key type.
func algorithms(keyType string) []string {
	if keyType == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{keyType}
}

// noKey is a key that matches no host.
type noKey struct{}

func (noKey) Type() string                        { return "none" }
func (noKey) Marshal() []byte                     { return []byte("none") }
func (noKey) Verify([]byte, *ssh.Signature) error { return errors.New("no key") }

// login returns the ways to authenticate: by a key file, or by the agent's keys and then
// the keys in the usual files. done closes the connection to the agent.
func (s *HostConfig) login() (methods []ssh.AuthMethod, done func(), err error) {
	done = func() {}
	if s.Key != "" {
		signer, err := readKey(expand(s.Key))
		if err != nil {
			return nil, nil, fmt.Errorf("host %s: %w", s.Name, err)
		}
		return []ssh.AuthMethod{ssh.PublicKeys(signer)}, done, nil
	}
	if socket := os.Getenv("SSH_AUTH_SOCK"); socket != "" {
		if conn, err := net.Dial("unix", socket); err == nil {
			methods = append(methods, ssh.PublicKeysCallback(agent.NewClient(conn).Signers))
			done = func() { conn.Close() }
		}
	}
	var signers []ssh.Signer
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		if signer, err := readKey(expand("~/.ssh/" + name)); err == nil {
			signers = append(signers, signer)
		}
	}
	if len(signers) > 0 {
		methods = append(methods, ssh.PublicKeys(signers...))
	}
	if len(methods) == 0 {
		return nil, nil, fmt.Errorf("host %s: no key to log in with: name its file in the inventory (key), or add it to ssh-agent", s.Name)
	}
	return methods, done, nil
}

func readKey(file string) (ssh.Signer, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(text)
	if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) {
		return nil, fmt.Errorf("read key %s: it has a passphrase; add it to ssh-agent (ssh-add) and leave key out", file)
	}
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", file, err)
	}
	return signer, nil
}

// expand replaces a leading ~.
func expand(file string) string {
	if rest, ok := strings.CutPrefix(file, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return file
}
