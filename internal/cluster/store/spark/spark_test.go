package spark

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// fake is a Spark Connect server that answers statements from a table and records its
// requests. make test-spark uses a real one.
type fake struct {
	mu       sync.Mutex
	answers  map[string][][]byte // by statement: batches
	views    []*CreateDataFrameViewCommand
	set      map[string]string
	sessions map[string]bool // open
	tokens   []string
}

func (f *fake) serve(_ any, stream grpc.ServerStream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	md, _ := metadata.FromIncomingContext(stream.Context())
	f.tokens = append(f.tokens, md.Get("authorization")...)
	name, _ := grpc.MethodFromServerStream(stream)
	get := func(m proto.Message) bool { return stream.RecvMsg(m) == nil }
	switch strings.TrimPrefix(name, service) {
	case "AnalyzePlan":
		var in AnalyzePlanRequest
		if !get(&in) || in.SparkVersion == nil || len(in.SessionId) != 36 || in.UserContext.GetUserId() == "" {
			return status.Error(codes.InvalidArgument, "no")
		}
		f.sessions[in.SessionId] = true
		return stream.SendMsg(&AnalyzePlanResponse{SparkVersion: &AnalyzePlanResponse_SparkVersion{Version: "4.0.0"}})
	case "Config":
		var in ConfigRequest
		get(&in)
		for _, p := range in.GetOperation().GetSet().GetPairs() {
			f.set[p.Key] = p.GetValue()
		}
		return stream.SendMsg(&ConfigResponse{})
	case "ReleaseSession":
		var in ReleaseSessionRequest
		get(&in)
		delete(f.sessions, in.SessionId)
		return stream.SendMsg(&ReleaseSessionResponse{})
	case "ExecutePlan":
		var in ExecutePlanRequest
		get(&in)
		if v := in.GetPlan().GetCommand().GetCreateDataframeView(); v != nil {
			f.views = append(f.views, v)
			return nil
		}
		batches, ok := f.answers[in.GetPlan().GetRoot().GetSql().GetQuery()]
		if !ok {
			return status.Error(codes.Internal, "[PARSE_SYNTAX_ERROR] no such thing\n== SQL ==\nline 1")
		}
		for _, b := range batches {
			if err := stream.SendMsg(&ExecutePlanResponse{ArrowBatch: &ExecutePlanResponse_ArrowBatch{Data: b}}); err != nil {
				return err
			}
		}
		return nil
	}
	return status.Error(codes.Unimplemented, name)
}

func start(t *testing.T) (*fake, string) {
	t.Helper()
	f := &fake{answers: map[string][][]byte{}, set: map[string]string{}, sessions: map[string]bool{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(f.serve))
	var served sync.WaitGroup
	served.Go(func() {
		if err := s.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { s.Stop(); served.Wait() })
	return f, "sc://" + l.Addr().String()
}

func open(t *testing.T, address string) *Session {
	t.Helper()
	s, err := Open(t.Context(), address, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// batch makes an Arrow stream of some rows with each kind of value.
func batch(t *testing.T, rows ...int64) []byte {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "mean", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "job", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "ts", Type: &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}},
		{Name: "sum", Type: &arrow.Decimal128Type{Precision: 20, Scale: 2}}, {Name: "open", Type: arrow.FixedWidthTypes.Boolean},
		{Name: "q", Type: arrow.ListOf(arrow.PrimitiveTypes.Float64)},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for _, n := range rows {
		b.Field(0).(*array.Int64Builder).Append(n)
		switch n {
		case 2:
			b.Field(1).(*array.Float64Builder).AppendNull()
			b.Field(2).(*array.StringBuilder).AppendNull()
		default:
			b.Field(1).(*array.Float64Builder).Append([]float64{0.1, math.NaN()}[n/3])
			b.Field(2).(*array.StringBuilder).Append(`say "hi"`)
		}
		b.Field(3).(*array.TimestampBuilder).Append(arrow.Timestamp(time.Date(2026, 11, 21, 13, 0, 0, 250e6, time.UTC).UnixMicro()))
		b.Field(4).(*array.Decimal128Builder).Append(decimal128.FromI64(12345))
		b.Field(5).(*array.BooleanBuilder).Append(n == 1)
		list := b.Field(6).(*array.ListBuilder)
		list.Append(true)
		list.ValueBuilder().(*array.Float64Builder).AppendValues([]float64{1, 2.5}, nil)
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(schema))
	if err := errors.Join(w.Write(rec), w.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestAnswers(t *testing.T) {
	f, address := start(t)
	s := open(t, address)
	f.answers["ask"] = [][]byte{batch(t, 1, 2), batch(t, 3)}
	f.answers["none"] = [][]byte{batch(t)}
	f.answers["broken"] = [][]byte{[]byte("no stream of Arrow's")}
	a, err := s.Query(t.Context(), "ask", 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range a.Rows {
		got = append(got, string(r))
	}
	want := `[1,0.1,"say \"hi\"","2026-11-21T13:00:00.25Z",123.45,true,[1,2.5]]
[2,null,null,"2026-11-21T13:00:00.25Z",123.45,false,[1,2.5]]
[3,null,"say \"hi\"","2026-11-21T13:00:00.25Z",123.45,false,[1,2.5]]`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	var types []string
	for _, c := range a.Columns {
		types = append(types, c.Name+" "+c.Type)
	}
	if got, want := strings.Join(types, ", "), "n BIGINT, mean DOUBLE, job VARCHAR, ts TIMESTAMPTZ, sum DECIMAL(20,2), open BOOLEAN, q DOUBLE[]"; got != want || a.Truncated {
		t.Errorf("columns %s\nwant %s", got, want)
	}
	for most, cut := range map[int]bool{0: true, 2: true, 3: false} {
		if a, err := s.Query(t.Context(), "ask", most); err != nil || len(a.Rows) != most || a.Truncated != cut {
			t.Errorf("at most %d: %+v, %v", most, a, err)
		}
	}
	if a, err := s.Query(t.Context(), "none", 100); err != nil || len(a.Rows) != 0 || len(a.Columns) != 7 {
		t.Errorf("no rows: %+v, %v", a, err)
	}
	var e Error
	if _, err := s.Query(t.Context(), "nonsense", 100); !errors.As(err, &e) || e.Error() != "Spark: [PARSE_SYNTAX_ERROR] no such thing" {
		t.Errorf("an error of Spark's: %v", err)
	}
	if _, err := s.Query(t.Context(), "broken", 100); err == nil || !strings.Contains(err.Error(), "read Spark's answer") {
		t.Errorf("no answer: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Query(ctx, "ask", 100); err == nil {
		t.Error("a cancelled query was answered")
	}
}

func TestSessions(t *testing.T) {
	f, address := start(t)
	s, err := Open(t.Context(), address, "secret")
	if err != nil {
		t.Fatal(err)
	}
	if s.Version != "4.0.0" || f.set["spark.sql.session.timeZone"] != "UTC" || len(f.sessions) != 1 {
		t.Errorf("%+v, %v, %v", s, f.set, f.sessions)
	}
	if err := s.Tables(t.Context(), map[string][]string{store.Samples: {"/a.parquet", "/b.parquet"}}, 1000, 0); err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, v := range f.views {
		names[v.Name] = v.GetInput().GetSql().GetQuery()
		if d := v.GetInput().GetRead().GetDataSource(); v.Name == storedSamples && (strings.Join(d.GetPaths(), " ") != "/a.parquet /b.parquet" || d.GetFormat() != "parquet") {
			t.Errorf("samples are read from %v", d)
		}
	}
	for _, want := range []string{"samples", "incident_history", "incidents", "actions", "audit", "spec_history", "specs", "signals"} {
		if _, ok := names[want]; !ok {
			t.Errorf("no table %s", want)
		}
	}
	if names["samples"] != "SELECT * FROM stored_samples WHERE ts >= timestamp_millis(1000)" {
		t.Errorf("samples: %s", names["samples"])
	}
	if err := s.Close(); err != nil || len(f.sessions) != 0 {
		t.Errorf("%v; open %v", err, f.sessions)
	}
	if len(f.tokens) < 4 || f.tokens[0] != "Bearer secret" {
		t.Errorf("tokens %v", f.tokens)
	}
	if _, err := Open(t.Context(), "sc://192.0.2.1:15002", "secret"); !errors.Is(err, ErrAddress) {
		t.Errorf("a token without TLS: %v", err)
	}
}

func TestAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"sc://spark:15002": "spark:15002", "sc://spark": "spark:15002", "sc://[::1]:7/": "[::1]:7", "sc://spark:1/;use_ssl=true": "spark:1 TLS", "sc://spark:1/;use_ssl=false": "spark:1",
		"": "", "spark:15002": "", "http://spark": "", "sc://": "", "sc://u:p@spark": "", "sc://spark/db": "", "sc://spark/;token=x": "", "sc://spark?x=1": "", "sc://spark:port": "",
	} {
		target, secure, err := parse(address)
		if secure {
			target += " TLS"
		}
		if target != want && err == nil || (err != nil) != (want == "") || (Check(address) == nil) != (err == nil) {
			t.Errorf("%q: %q, %v; want %q", address, target, err, want)
		}
		if err != nil && !errors.Is(err, ErrAddress) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestNobodyThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "sc://" + l.Addr().String()
	l.Close()
	if _, err := Open(t.Context(), address, ""); err == nil || !strings.Contains(err.Error(), address) {
		t.Errorf("got %v, want it to name %s", err, address)
	}
}

// bucket is one in which there are only names.
type bucket struct {
	store.Bucket
	put sync.Map
}

func (b *bucket) Put(_ context.Context, name, _ string) error {
	b.put.Store(name, true)
	return nil
}

func (b *bucket) List(context.Context, string) ([]store.Entry, error) { return nil, nil }

func (b *bucket) URL(name string) string { return "s3://quell/" + name }

// TestTablesWithoutSegments: Spark finds the columns of a table where it finds segments, not on the server's disk.
func TestTablesWithoutSegments(t *testing.T) {
	b := &bucket{}
	s, err := store.Open(t.TempDir(), store.Options{Bucket: b})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sn := s.Snapshot(0, 0)
	defer sn.Close()
	for table, files := range Files(sn) {
		name := "schema/" + table + ".parquet"
		if _, stored := b.put.Load(name); !stored || len(files) != 1 || files[0] != b.URL(name) {
			t.Errorf("%s is in %v, stored: %v", table, files, stored)
		}
	}
}
