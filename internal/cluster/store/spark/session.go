package spark

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ErrAddress means that an address is not that of a Spark Connect server.
var ErrAddress = errors.New("want sc://HOST:PORT, or sc://HOST:PORT/;use_ssl=true")

// Session is a session on a Spark Connect server. No other session sees its views. It is
// not safe for concurrent use.
type Session struct {
	// Version is the version of Spark.
	Version string

	conn  *grpc.ClientConn
	id    string
	token string
}

const (
	service = "/spark.connect.SparkConnectService/"
	client  = "quell"
	// maxMessage bounds the size of a message: Spark's batches are of 4 MB.
	maxMessage = 128 << 20
	// patience is how long the server may take to answer at first.
	patience = 30 * time.Second
)

// Open starts a session with the server at an address in Spark's format
// (sc://HOST:PORT/;use_ssl=true). A token is sent with each request and requires TLS
// except on loopback. The caller must close the session.
func Open(ctx context.Context, address, token string) (*Session, error) {
	target, secure, err := parse(address)
	if err != nil {
		return nil, err
	}
	if token != "" && !secure && !loopback(target) {
		return nil, fmt.Errorf("%s: a token is not sent without TLS: %w", address, ErrAddress)
	}
	transport := insecure.NewCredentials()
	if secure {
		transport = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	conn, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(transport), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("reach Spark at %s: %w", address, err)
	}
	s := &Session{conn: conn, id: uuid.NewString(), token: token}
	if err := s.begin(ctx); err != nil {
		return nil, fmt.Errorf("reach Spark at %s: %w", address, errors.Join(err, conn.Close()))
	}
	return s, nil
}

// Check validates an address without connecting.
func Check(address string) error {
	_, _, err := parse(address)
	return err
}

func parse(address string) (target string, secure bool, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", false, fmt.Errorf("%w: %w", ErrAddress, err)
	}
	path, params, _ := strings.Cut(u.Path, ";")
	if u.Scheme != "sc" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || path != "" && path != "/" {
		return "", false, fmt.Errorf("%q: %w", address, ErrAddress)
	}
	for _, p := range strings.Split(params, ";") {
		switch p {
		case "", "use_ssl=false":
		case "use_ssl=true":
			secure = true
		default:
			return "", false, fmt.Errorf("%q: unknown parameter %q: %w", address, p, ErrAddress)
		}
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "15002")), secure, nil // Spark's default
}

func loopback(target string) bool {
	host, _, err := net.SplitHostPort(target)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

func user() *UserContext { return &UserContext{UserId: client} }

// begin checks that the server answers, and sets the time zone to UTC.
func (s *Session) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var version AnalyzePlanResponse
	if err := s.call(ctx, "AnalyzePlan", &AnalyzePlanRequest{SessionId: s.id, UserContext: user(), ClientType: proto.String(client), SparkVersion: &AnalyzePlanRequest_SparkVersion{}}, &version); err != nil {
		return err
	}
	s.Version = version.GetSparkVersion().GetVersion()
	set := &ConfigRequest_Set{Pairs: []*KeyValue{{Key: "spark.sql.session.timeZone", Value: proto.String("UTC")}}}
	return s.call(ctx, "Config", &ConfigRequest{SessionId: s.id, UserContext: user(), ClientType: proto.String(client), Operation: &ConfigRequest_Operation{Set: set}}, &ConfigResponse{})
}

// Close ends the session and everything that it runs.
func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := s.call(ctx, "ReleaseSession", &ReleaseSessionRequest{SessionId: s.id, UserContext: user(), ClientType: proto.String(client)}, &ReleaseSessionResponse{})
	return errors.Join(err, s.conn.Close())
}

// signed adds the token to a request.
func (s *Session) signed(ctx context.Context) context.Context {
	if s.token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+s.token)
}

func (s *Session) call(ctx context.Context, method string, in, out proto.Message) error {
	return sparkError(s.conn.Invoke(s.signed(ctx), service+method, in, out))
}

// Error is an error returned by Spark: the first line of its message.
type Error string

func (e Error) Error() string { return "Spark: " + string(e) }

// sparkError converts a gRPC error to an Error; the end of a stream is none.
func sparkError(err error) error {
	if st, ok := status.FromError(err); ok && err != nil {
		message, _, _ := strings.Cut(strings.TrimSpace(st.Message()), "\n")
		return Error(message)
	} else if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// execute executes a plan and calls take with each part of the result.
func (s *Session) execute(ctx context.Context, plan *Plan, take func(*ExecutePlanResponse) error) error {
	ctx, cancel := context.WithCancel(s.signed(ctx))
	defer cancel()
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, service+"ExecutePlan")
	if err == nil {
		err = stream.SendMsg(&ExecutePlanRequest{SessionId: s.id, UserContext: user(), Plan: plan, ClientType: proto.String(client)})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	for err == nil {
		var part ExecutePlanResponse
		if err = stream.RecvMsg(&part); err == nil {
			if bad := take(&part); bad != nil {
				return bad
			}
		}
	}
	return sparkError(err)
}
