package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/dashboard"
	"github.com/quell-dev/quell/internal/people/dashboard/local"
)

// uiListen is where the dashboard of this machine is by default.
const uiListen = "127.0.0.1:9782"

func (a *commands) ui() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use: "ui", Short: "show the dashboard of this machine to a browser", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := loopback(listen); err != nil {
				return err
			}
			st, err := a.client().Status(cmd.Context())
			if err != nil {
				return err
			}
			s, err := openUI(listen)
			if err != nil {
				return err
			}
			s.watch(a.socket)
			if _, err := fmt.Fprintf(a.Out, "the dashboard of %s: http://%s\nits token:  %s\n", st.Machine, s.address, s.token); err != nil {
				return errors.Join(err, s.close())
			}
			return s.serve(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&listen, "listen", uiListen, "address; only loopback")
	return cmd
}

// loopback is the error of an address that others than this machine can reach.
func loopback(listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return app.Usage(fmt.Errorf("--listen %s: want an address of this machine only, such as %s", listen, uiListen), "use quell-server with TLS to show more than this machine to others")
	}
	return nil
}

// uiServer serves the dashboard of an agent.
type uiServer struct {
	address net.Addr
	token   string
	files   http.Handler
	agent   atomic.Value // the http.HandlerFunc for the agent that is watched
	web     *http.Server
	ended   chan error // of web
}

// openUI serves until it is closed. Before watch its answers are empty.
func openUI(listen string) (*uiServer, error) {
	files, err := dashboard.New()
	if err != nil {
		return nil, err
	}
	l, err := daemon.Listen("--listen", listen)
	if err != nil {
		return nil, err
	}
	s := &uiServer{address: l.Addr(), token: rand.Text(), files: files, ended: make(chan error, 1)}
	s.agent.Store(http.HandlerFunc(files.ServeHTTP))
	// A stream of events ends with its server.
	ctx, stop := context.WithCancel(context.Background())
	s.web = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.agent.Load().(http.HandlerFunc)(w, r) }),
		ErrorLog: log.New(io.Discard, "", 0), BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() {
		defer stop()
		s.ended <- daemon.Serve(s.web, l, nil, daemon.Bounds{Connections: 64, Answer: time.Minute})
	}()
	return s, nil
}

// watch shows the agent at a socket from now on.
func (s *uiServer) watch(socket string) {
	s.agent.Store(http.HandlerFunc(local.New(local.Options{Agent: api.NewClient(socket), Pages: s.files, Token: s.token, Poll: 2 * time.Second}).ServeHTTP))
}

// serve returns when ctx ends, which is no error.
func (s *uiServer) serve(ctx context.Context) error {
	select {
	case err := <-s.ended:
		return err
	case <-ctx.Done():
		return s.close()
	}
}

func (s *uiServer) close() error {
	err := s.web.Close()
	if ended := <-s.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
