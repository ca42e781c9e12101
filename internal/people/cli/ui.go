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
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/dashboard"
	"github.com/quell-dev/quell/internal/people/dashboard/local"
)

func (a *commands) ui() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use: "ui", Short: "show the dashboard of this machine to a browser", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serveUI(cmd.Context(), listen) },
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9782", "address; only loopback")
	return cmd
}

// serveUI serves the pages until ctx ends, which is no error.
func (a *commands) serveUI(ctx context.Context, listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return app.Usage(fmt.Errorf("--listen %s: want an address of this machine only, such as 127.0.0.1:9782", listen), "use quell-server with TLS to show more than this machine to others")
	}
	st, err := a.client().Status(ctx)
	if err != nil {
		return err
	}
	pages, err := dashboard.New()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	token := rand.Text()
	web := &http.Server{Handler: local.New(local.Options{Agent: a.client(), Pages: pages, Token: token, Poll: 2 * time.Second}),
		ErrorLog: log.New(io.Discard, "", 0), BaseContext: func(net.Listener) context.Context { return ctx }}
	if _, err := fmt.Fprintf(a.Out, "the dashboard of %s: http://%s\nits token:  %s\n", st.Machine, l.Addr(), token); err != nil {
		return errors.Join(err, l.Close())
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Serve(web, l, nil, daemon.Bounds{Connections: 64}) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = errors.Join(web.Close(), ignoreClosed(<-ended))
	}
	return err
}

// ignoreClosed is nil for the error with which a closed server ends.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
