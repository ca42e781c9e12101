// Package web sets up web servers for studies: a folder of files of the sizes of Mei et
// al. (section II-B: 1, 4, 10, 30, 50, 70 and 100 KB), a certificate, and the commands
// by which nginx, Apache or quell itself serve them. It starts nothing.
package web

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"embed"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
)

// Sizes returns the sizes of the files, in KB of 1024 bytes.
func Sizes() []int { return []int{1, 4, 10, 30, 50, 70, 100} }

// Site is a folder for a web server.
type Site struct{ Dir string }

// Open writes the files into a folder, and a certificate if there is none.
func Open(dir string) (Site, error) {
	s := Site{dir}
	if err := os.MkdirAll(s.path("files"), 0o755); err != nil {
		return s, fmt.Errorf("set up web site: %w", err)
	}
	for _, n := range Sizes() {
		page := bytes.Repeat([]byte("quell---"), n*1024/8)
		if err := os.WriteFile(s.path("files", strconv.Itoa(n)+"k"), page, 0o644); err != nil {
			return s, fmt.Errorf("set up web site: %w", err)
		}
	}
	if _, err := os.Stat(s.path("cert.pem")); errors.Is(err, fs.ErrNotExist) {
		if err := s.writeCertificate(); err != nil {
			return s, fmt.Errorf("make a certificate: %w", err)
		}
	}
	return s, nil
}

func (s Site) path(names ...string) string {
	return filepath.Join(append([]string{s.Dir}, names...)...)
}

// writeCertificate makes an RSA key of 2048 bits, whose signatures take most of a server's time
// for a short request, and a self-signed certificate.
func (s Site) writeCertificate() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	now := time.Now()
	cert := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "quell lab"}, DNSNames: []string{"localhost"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(s.path("key.pem"), text, 0o600); err != nil {
		return err
	}
	return os.WriteFile(s.path("cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

// Kinds of servers.
const (
	Nginx  = "nginx"
	Apache = "apache"
	Go     = "go" // quell itself, by Serve
)

// Kinds returns the names of the kinds of servers.
func Kinds() []string { return []string{Nginx, Apache, Go} }

// Program is the program of a kind of server, "" for quell itself.
func Program(kind string) string {
	return map[string]string{Nginx: "nginx", Apache: "apache2"}[kind]
}

// ErrNoServer says that a server's program is missing.
var ErrNoServer = errors.New("web server is not installed")

// configurations are the servers' files. Each configures one process, nginx without a
// master, so that its thread is the only one to measure; Apache's process has threads.
//
//go:embed nginx.conf.tmpl apache2.conf.tmpl
var configurations embed.FS

// Command returns the command that serves the site on ports 80 and, with TLS, 443, in
// one process, in the foreground. Servers that run at the same time need different
// names. self is the command line that calls Serve with the folder that follows it. The
// error is ErrNoServer if the server is not installed.
func (s Site) Command(kind, name string, self []string) ([]string, error) {
	dir := s.path("run", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("set up %s: %w", kind, err)
	}
	program := Program(kind)
	switch kind {
	case Go:
		return append(slices.Clone(self), s.Dir), nil
	case Nginx, Apache:
	default:
		return nil, fmt.Errorf("set up web server: unknown kind %q: want one of %s", kind, strings.Join(Kinds(), ", "))
	}
	path, err := find(program)
	if err != nil {
		return nil, fmt.Errorf("set up %s: %w (apt-get install %s)", kind, ErrNoServer, program)
	}
	var conf bytes.Buffer
	t, err := template.ParseFS(configurations, program+".conf.tmpl")
	if err == nil {
		err = t.Execute(&conf, map[string]string{"Run": dir, "Certificate": s.path("cert.pem"), "Key": s.path("key.pem"), "Files": s.path("files")})
	}
	file := filepath.Join(dir, program+".conf")
	if err == nil {
		err = os.WriteFile(file, conf.Bytes(), 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("set up %s: %w", kind, err)
	}
	if kind == Apache {
		return []string{path, "-X", "-f", file}, nil
	}
	return []string{path, "-c", file, "-p", dir, "-e", "stderr"}, nil
}

// find also searches where Debian installs servers.
func find(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/" + program)
}

// Serve is the server Go: it serves the site in this process until the context ends.
func Serve(ctx context.Context, dir string, plain, secure net.Listener) error {
	s := Site{dir}
	cert, err := tls.LoadX509KeyPair(s.path("cert.pem"), s.path("key.pem"))
	if err != nil {
		return fmt.Errorf("serve %s: %w", dir, err)
	}
	server := &http.Server{Handler: http.FileServer(http.Dir(s.path("files"))), TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, SessionTicketsDisabled: true}}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(plain) }()
	go func() { ended <- server.ServeTLS(secure, "", "") }()
	err = <-ended
	_ = server.Close()
	if second := <-ended; errors.Is(err, http.ErrServerClosed) {
		err = second
	}
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve %s: %w", dir, err)
}
