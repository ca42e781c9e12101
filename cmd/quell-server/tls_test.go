package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// selfSigned makes a self-signed one for loopback.
func selfSigned(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), quelltest.Loopback()}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(parsed)
	return cert, key, pool
}

// credentials makes a credentials file with the shipped command.
func (r *running) credentials(t *testing.T, role, name string) string {
	t.Helper()
	text, err := quellServer(t, "credentials", role, name, "--set", "state_dir="+r.state)
	file := filepath.Join(t.TempDir(), name+".creds")
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func one(machine string) (sample.Millis, []sample.Sample) {
	now := sample.At(time.Now())
	return now, []sample.Sample{{TS: now, Machine: machine, Job: "web", Task: "/web/1", Platform: "p", Signal: sample.CPI, Variant: "v", CPU: 1, Cost: 7, Coverage: 1}}
}

// TestTLS: with a certificate the API and the bus speak only TLS, and an agent that does
// not trust the certificate sends nothing.
func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key, pool := selfSigned(t)
	r := &running{tls: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}}
	r = startAs(t, r, "tls.cert="+cert, "tls.key="+key)
	creds := r.credentials(t, "agent", "m1")
	if up := r.uplink(t, "m1", creds, nil); true {
		up.Samples(one("m1"))
		quelltest.Until(t, "it does not trust the server", quelltest.Paced(func() bool {
			err := up.Err()
			return err != nil && strings.Contains(err.Error(), "certificate")
		}))
		up.Close()
	}
	up := r.uplink(t, "m1", creds, func(o *bus.Options) {
		o.URL, o.TLS = "tls://"+r.bus, &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	})
	up.Samples(one("m1"))
	r.untilSQL("the sample is there", "SELECT count(*) FROM samples", "[1]")
	plain := *r
	plain.tls = nil
	if status, text := plain.get("/healthz"); status == http.StatusOK {
		t.Errorf("without TLS it answers %s", text)
	}
}

// TestExternalBus: an external NATS server is used by one setting, with the same
// permissions of credentials.
func TestExternalBus(t *testing.T) {
	t.Parallel()
	cert, key, pool := selfSigned(t)
	state := t.TempDir()
	keys, err := authority.Load(filepath.Join(state, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	trust, err := keys.Trust()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	external, err := embedded.Start(embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", TLS: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		Log: slog.New(slog.DiscardHandler)}, trust)
	if err != nil {
		t.Fatal(err)
	}
	defer external.Close()
	_, address, _ := strings.Cut(external.URL(), "://")
	owner := &running{state: state}
	r := start(t, "bus.url=tls://"+address, "bus.ca="+cert, "bus.credentials="+owner.credentials(t, "server", "quell-1"))
	r.bus = address
	up := r.uplink(t, "m1", owner.credentials(t, "agent", "m1"), func(o *bus.Options) {
		o.URL, o.TLS = "tls://"+address, &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	})
	up.Samples(one("m1"))
	r.untilSQL("the sample is there", "SELECT machine FROM samples", `["m1"]`)
	out, err := quellServer(t, "trust", "--set", "state_dir="+state)
	if err != nil || !strings.Contains(out, trust.Accounts["commands"]) || !strings.Contains(out, "operator: ey") {
		t.Errorf("trust: %q, %v", out, err)
	}
}
