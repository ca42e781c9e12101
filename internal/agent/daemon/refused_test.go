package daemon

import (
	"errors"
	"net"
	"strings"
	"testing"
)

// An address that is taken, or is none of this machine, is an error of usage that says what to do.
func TestListenSaysWhatToDo(t *testing.T) {
	taken, err := Listen("--listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	for _, c := range []struct{ address, says, remedy string }{
		{taken.Addr().String(), "address already in use", "`ss -ltnp 'sport = :" + port + "'`"},
		{"192.0.2.7:0", "cannot assign requested address", "ip address"},
		{"127.0.0.1", "missing port", "such as 127.0.0.1:9782"},
	} {
		l, err := Listen("--listen", c.address)
		if err == nil {
			l.Close()
			t.Errorf("%s: no error", c.address)
			continue
		}
		var usage UsageError
		var remedied Remedier
		if !errors.As(err, &usage) || !errors.As(err, &remedied) {
			t.Fatalf("%s: %#v", c.address, err)
		}
		if text := err.Error(); !strings.HasPrefix(text, "--listen "+c.address+": ") || !strings.Contains(text, c.says) || !strings.Contains(remedied.Remedy(), c.remedy) {
			t.Errorf("%s: %q, what to do: %q", c.address, text, remedied.Remedy())
		}
	}
}
