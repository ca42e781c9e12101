package origin

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// grpcClient makes unary gRPC calls over a Unix socket: HTTP/2 without TLS, with a message of five
// bytes of header in each direction and the status in the trailer
// (github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
type grpcClient struct {
	http http.Client
}

// maxMessage bounds an answer, in bytes; containerd's own limit is 16 MB.
const maxMessage = 32 << 20

func newGRPC(socket string) *grpcClient {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	return &grpcClient{http.Client{Transport: &http.Transport{Protocols: &p, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}}}}
}

// call sends a message and returns the answer's. The error is the server's status, or why there is
// no answer.
func (c *grpcClient) call(ctx context.Context, method string, message []byte) (_ []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("call %s: %w", method, err)
		}
	}()
	body := append([]byte{0}, binary.BigEndian.AppendUint32(nil, uint32(len(message)))...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+method, bytes.NewReader(append(body, message...)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, plainly(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage+1))
	if err != nil {
		return nil, plainly(err)
	}
	status := resp.Trailer // or, without a message, in the header
	if status.Get("Grpc-Status") == "" {
		status = resp.Header
	}
	if code := status.Get("Grpc-Status"); code != "0" {
		return nil, fmt.Errorf("gRPC status %q: %.200q", code, status.Get("Grpc-Message"))
	}
	if len(answer) < 5 || len(answer) > maxMessage || answer[0] != 0 || int(binary.BigEndian.Uint32(answer[1:5])) != len(answer)-5 {
		return nil, fmt.Errorf("answer of %d bytes is not one uncompressed message", len(answer))
	}
	return answer[5:], nil
}

// plainly is the error without the made-up URL.
func plainly(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func (c *grpcClient) close() { c.http.CloseIdleConnections() }

// fields calls each for every field of a protobuf message that is a number (n) or has bytes (b).
func fields(message []byte, each func(field protowire.Number, n uint64, b []byte) error) error {
	for len(message) > 0 {
		num, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		var n uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			b, size = protowire.ConsumeBytes(message)
		default:
			size = protowire.ConsumeFieldValue(num, kind, message)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		if kind != protowire.VarintType && kind != protowire.BytesType {
			continue
		}
		if err := each(num, n, b); err != nil {
			return fmt.Errorf("field %s: %w", strconv.Itoa(int(num)), err)
		}
	}
	return nil
}

// mapEntry adds an entry of a map<string, string> field.
func mapEntry(all map[string]string, message []byte) error {
	var k, v string
	err := fields(message, func(field protowire.Number, _ uint64, b []byte) error {
		switch field {
		case 1:
			k = string(b)
		case 2:
			v = string(b)
		}
		return nil
	})
	all[k] = v
	return err
}
