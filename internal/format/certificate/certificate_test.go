package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// write writes a self-signed certificate for loopback, with a serial number.
func write(t *testing.T, cert, key string, serial int64, ends time.Time) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: ends.Add(-90 * 24 * time.Hour), NotAfter: ends, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if file == "" {
			continue
		}
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		// Two writes may have the same time of a file.
		if at := time.Unix(serial, 0); os.Chtimes(file, at, at) != nil {
			t.Fatal("cannot set the file's time")
		}
	}
}

// handshake returns the serial number that a client with its own files sees.
func handshake(server *tls.Config, client *Files) (int64, error) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	ended := make(chan error, 1)
	go func() { ended <- tls.Server(a, server).Handshake() }()
	c := client.Client()
	roots, err := client.Roots()()
	if err != nil {
		return 0, err
	}
	c.RootCAs, c.ServerName = roots, "127.0.0.1"
	conn := tls.Client(b, c)
	if err := conn.Handshake(); err != nil {
		b.Close()
		<-ended
		return 0, err
	}
	if err := <-ended; err != nil {
		return 0, err
	}
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
}

// TestRenewed: a renewed certificate and renewed CA certificates are in use without a restart.
// While files are unusable, the previous ones stay in use.
func TestRenewed(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ends := time.Now().Add(60 * 24 * time.Hour)
	write(t, cert, key, 1, ends)
	files, err := Open("tls", "", cert, key)
	if err != nil {
		t.Fatal(err)
	}
	client, err := Open("server.tls", cert, "", "")
	if err != nil {
		t.Fatal(err)
	}
	server := files.Server().Clone() // as listeners do
	if n, err := handshake(server, client); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	write(t, cert, "", 2, ends)
	if err := files.Refresh(); err == nil || !strings.Contains(err.Error(), "tls.cert") {
		t.Errorf("a certificate with another one's key: %v", err)
	}
	if err := files.Refresh(); err != nil {
		t.Errorf("the same error again: %v", err)
	}
	if err := files.Err(); err == nil || !strings.Contains(err.Error(), "stays in use") {
		t.Errorf("its state: %v", err)
	}
	if n, err := handshake(server, client); n != 1 || err != nil {
		t.Errorf("meanwhile %d, %v", n, err)
	}
	write(t, cert, key, 3, ends)
	if err := errors.Join(files.Refresh(), files.Err()); err != nil {
		t.Error(err)
	}
	if _, err := handshake(server, client); err == nil {
		t.Error("the client trusts a certificate that it has not read")
	}
	if err := client.Refresh(); err != nil {
		t.Error(err)
	}
	if n, err := handshake(server, client); n != 3 || err != nil {
		t.Errorf("renewed %d, %v", n, err)
	}
}

// TestWarnings: a warning comes before the end, early enough also for short lives.
func TestWarnings(t *testing.T) {
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	for _, c := range []struct {
		begins, ends time.Time
		want         string
	}{
		{now.Add(-60 * day), now.Add(30 * day), ""},
		{now.Add(-80 * day), now.Add(10 * day), "x expires at 2026-12-03T00:00:00Z"},
		{time.Time{}, now.Add(10 * day), "x expires at 2026-12-03T00:00:00Z"},
		{now.Add(-time.Hour), now.Add(23 * time.Hour), ""},
		{now.Add(-20 * time.Hour), now.Add(4 * time.Hour), "x expires at 2026-11-23T04:00:00Z"},
		{now.Add(-9 * day), now.Add(-day), "x expired at 2026-11-22T00:00:00Z"},
	} {
		got := strings.Join(Warnings([]Expiry{{"x", c.begins, c.ends}}, now), "; ")
		if got != c.want {
			t.Errorf("%v to %v: %q, want %q", c.begins, c.ends, got, c.want)
		}
	}
}

// TestNone: without files everything is as in the standard library.
func TestNone(t *testing.T) {
	f, err := Open("tls", "", "", "")
	if f != nil || err != nil || f.Server() != nil || f.Client() != nil || f.Roots() != nil || f.Err() != nil || f.Refresh() != nil || f.Expiries() != nil {
		t.Errorf("%v, %v", f, err)
	}
	dir := t.TempDir()
	if _, err := Open("bus", filepath.Join(dir, "none"), "", ""); err == nil || !strings.Contains(err.Error(), "read bus.ca") {
		t.Error(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("bus", empty, "", ""); err == nil || !strings.Contains(err.Error(), "holds no certificate") {
		t.Error(err)
	}
}
