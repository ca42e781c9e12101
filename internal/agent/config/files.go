package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// file is a file that a configuration names.
type file struct {
	key, path string
	secret    bool // else it must only not be changed by others
}

// CheckFiles checks the files that the configuration names: they exist, only their owner may
// change them, and those with secrets can be read by their owner and its group at most. The
// error is an *InvalidError that names every problem.
func (a *Agent) CheckFiles() error {
	t, credentials := a.Server.TLS, a.Server.Credentials
	if _, err := os.Stat(credentials); a.Server.Later && errors.Is(err, fs.ErrNotExist) {
		credentials = ""
	}
	return checkFiles(file{"server.credentials", credentials, true}, file{"server.tls.key", t.Key, true},
		file{"server.tls.cert", t.Cert, false}, file{"server.tls.ca", t.CA, false},
		file{"names.kubelet.token", a.Names.Kubelet.Token, true}, file{"names.kubelet.ca", a.Names.Kubelet.CA, false})
}

// CheckFiles is Agent.CheckFiles for quell-server.
func (s *Server) CheckFiles() error {
	all := []file{{"tls.key", s.TLS.Key, true}, {"tls.cert", s.TLS.Cert, false}, {"tokens_file", s.TokensFile, false},
		{"bus.credentials", s.Bus.Credentials, true}, {"bus.ca", s.Bus.CA, false}, {"notify.webhook.url_file", s.Notify.Webhook.URLFile, true}}
	for _, r := range s.receivers() {
		// The kubelet sets the mode of a pod's token, in a container where there are no other users.
		all = append(all, file{r.key + ".token_file", r.TokenFile, r.key != "notify.kubernetes"}, file{r.key + ".ca", r.CA, false})
	}
	return checkFiles(all...)
}

func checkFiles(all ...file) error {
	var ps problems
	for _, f := range all {
		if f.path != "" {
			f.check(&ps)
		}
	}
	if len(ps) > 0 {
		return &InvalidError{What: "configuration", Problems: ps}
	}
	return nil
}

func (f *file) check(ps *problems) {
	info, err := os.Stat(f.path)
	if err != nil {
		ps.add(f.key, err, "a file that can be read")
		return
	}
	mode := info.Mode()
	shown := fmt.Sprintf("%s, %s", f.path, mode)
	switch {
	case !mode.IsRegular():
		ps.add(f.key, shown, "a regular file")
	case f.secret && mode.Perm()&0o137 != 0:
		ps.add(f.key, shown, "a file that other users cannot read, and only its owner can change: chmod 0600, or 0640 for a group of its readers")
	case mode.Perm()&0o022 != 0:
		ps.add(f.key, shown, "a file that only its owner can change: chmod go-w")
	case foreign(info):
		ps.add(f.key, shown, "a file of root or of the user that runs this program")
	}
}

// foreign reports whether a file belongs to a user that is neither root nor this process's.
func foreign(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid != 0 && int(st.Uid) != os.Geteuid()
}
