package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// The images have no files with CA certificates, and receivers of notifications are verified.
func TestCACertificatesWithoutASystem(t *testing.T) {
	const child = "QUELL_TEST_CHILD"
	if os.Getenv(child) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1", "SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	n := 0
	for root := range bundle.Roots() {
		c, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Verify(x509.VerifyOptions{KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}, CurrentTime: c.NotBefore.AddDate(0, 0, 1)}); err == nil {
			n++
		}
	}
	if n < 50 {
		t.Errorf("%d CA certificates are trusted", n)
	}
	if _, err := new(x509.Certificate).Verify(x509.VerifyOptions{}); err == nil {
		t.Error("an empty certificate is trusted")
	}
}
