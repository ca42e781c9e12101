package config

import (
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
)

// Uplink configures how an agent connects to its server.
type Uplink struct {
	URL         string `key:"url" help:"the server's bus, or several separated by commas: tls://HOST:PORT, or nats://HOST:PORT on loopback; empty: no server"`
	Credentials string `key:"credentials" help:"file of this machine's credentials, from quell-server; read again for every connection"`
	// Later is for machines that get their credentials after the agent: a pod of each new node.
	Later bool      `key:"credentials_later" help:"start also if the file of credentials does not exist yet, and connect when it does"`
	TLS   UplinkTLS `key:"tls"`
	Spool Spool     `key:"spool"`
}

// UplinkTLS names files for a TLS connection.
type UplinkTLS struct {
	CA   string `key:"ca" help:"CA certificates for the server's certificate, PEM; empty: the system's"`
	Cert string `key:"cert" help:"certificate of this machine, PEM, if the server requires one"`
	Key  string `key:"key" help:"its private key, PEM"`
}

// Spool configures where the agent keeps data that the server has not accepted yet.
type Spool struct {
	Dir   string `key:"dir" help:"directory; empty: spool in state_dir"`
	MaxMB int    `key:"max_mb" help:"maximum size on disk; when it is full, the oldest messages are dropped and counted" min:"8" max:"1000000"`
}

// SpoolDir is Server.Spool.Dir, or the default in the state directory.
func (a *Agent) SpoolDir() string {
	if a.Server.Spool.Dir != "" {
		return a.Server.Spool.Dir
	}
	return filepath.Join(a.StateDir, "spool")
}

// validate reports problems beyond the ranges of single keys.
func (u *Uplink) validate(add func(key string, value any, want string)) {
	if (u.TLS.Cert == "") != (u.TLS.Key == "") {
		add("server.tls.cert", strconv.Quote(u.TLS.Cert), "both server.tls.cert and server.tls.key, or neither")
	}
	checkURLs("server", u.URL, u.Credentials, add)
}

// checkURLs checks the addresses of a bus, in the key url below the given one: in plain text
// they are of loopback, and beyond it the key credentials is set.
func checkURLs(key, urls, credentials string, add func(key string, value any, want string)) {
	if urls == "" {
		return
	}
	beyond := false
	for part := range strings.SplitSeq(urls, ",") {
		at, err := url.Parse(part)
		if err != nil || at.Scheme != "nats" && at.Scheme != "tls" || at.Hostname() == "" || at.User != nil {
			shown := strconv.Quote(part)
			if at == nil || at.User != nil {
				shown = "a URL that is not shown because it may contain a password"
			}
			add(key+".url", shown, "tls://HOST:PORT or nats://HOST:PORT, several separated by commas, without credentials ("+key+".credentials)")
			return
		}
		loopback := isLoopback(at.Hostname())
		if !loopback && at.Scheme != "tls" {
			add(key+".url", strconv.Quote(part), "tls:// beyond loopback")
			return
		}
		beyond = beyond || !loopback
	}
	if beyond && credentials == "" {
		add(key+".credentials", `""`, "a file of credentials, for a server beyond loopback")
	}
}
