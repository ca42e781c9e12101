package quelltest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The key that an S3 server of [NewS3] accepts.
const (
	S3Key    = "test"
	S3Secret = "secret-of-a-test"
)

// S3Env sets the AWS library's variables to that key and to no user's settings.
func S3Env(t testing.TB) {
	t.Helper()
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": S3Key, "AWS_SECRET_ACCESS_KEY": S3Secret, "AWS_REGION": "us-east-1",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"} {
		t.Setenv(name, value)
	}
}

// S3 is an S3 server in a process of its own.
type S3 struct {
	URL string
	Dir string // holds its buckets, which are folders

	t      testing.TB
	listen string
	cmd    *exec.Cmd
}

// NewS3 starts a server with these buckets, and ends it with the test. It calls
// [S3Env]. The server is Versity's gateway over a folder, the program
// versitygw, which make test-deps installs.
func NewS3(t testing.TB, buckets ...string) *S3 {
	t.Helper()
	Need(t, "versitygw")
	S3Env(t)
	listen := FreeAddress(t)
	s := &S3{URL: "http://" + listen, Dir: t.TempDir(), t: t, listen: listen}
	for _, name := range buckets {
		if err := os.Mkdir(filepath.Join(s.Dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.Start()
	t.Cleanup(s.Kill)
	return s
}

// Start starts the server again, at the same address over the same folder, and
// returns when it answers.
func (s *S3) Start() {
	s.t.Helper()
	s.cmd = exec.Command("versitygw", "--access", S3Key, "--secret", S3Secret, "--port", s.listen, "posix", s.Dir)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	Until(s.t, "the S3 server answers", func() bool {
		c, err := net.Dial("tcp", s.listen)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// Kill ends the server with SIGKILL.
func (s *S3) Kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	_ = s.cmd.Wait()         // it was killed
}
