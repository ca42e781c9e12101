package s3

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/sample"
	trace "github.com/quell-dev/quell/internal/format/trace/parquet"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// open opens a bucket on a test server.
func open(t *testing.T, g *quelltest.S3, name string) *Bucket {
	t.Helper()
	b, err := Open(t.Context(), Options{Bucket: name, Prefix: "/a/b/", Endpoint: g.URL})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBucket checks the guarantees of store.Bucket.
func TestBucket(t *testing.T) {
	b := open(t, quelltest.NewS3(t, "quell"), "quell")
	ctx := t.Context()
	file := filepath.Join(t.TempDir(), "f")
	content := strings.Repeat("0123456789abcdef", 1<<17) // 2 MB
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(ctx, "samples/day=1/x", file); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Read(ctx, "samples/day=1/x"); err != nil || string(got) != content {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	back := filepath.Join(t.TempDir(), "g")
	if err := b.Get(ctx, "samples/day=1/x", back); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(back); err != nil || string(got) != content {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for name, err := range map[string]error{"read": second(b.Read(ctx, "nothing")), "get": b.Get(ctx, "nothing", back+"2")} {
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "s3://quell/a/b/nothing") {
			t.Errorf("%s what is not there: %v", name, err)
		}
	}
	if _, err := os.Stat(back + "2"); err == nil {
		t.Error("what is not there left a file")
	}
	if err := b.Create(ctx, "log/1", []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := b.Create(ctx, "log/1", []byte("two")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	if got, err := b.Read(ctx, "log/1"); err != nil || string(got) != "one" {
		t.Errorf("%q, %v", got, err)
	}
	entries, err := b.List(ctx, "samples")
	if err != nil || len(entries) != 1 || entries[0].Name != "samples/day=1/x" || entries[0].Bytes != int64(len(content)) || time.Since(entries[0].At).Abs() > time.Hour {
		t.Errorf("%+v, %v", entries, err)
	}
	for range 2 { // the second call is no error
		if err := b.Remove(ctx, "samples/day=1/x"); err != nil {
			t.Error(err)
		}
	}
	if entries, err = b.List(ctx, "samples"); err != nil || len(entries) != 0 {
		t.Errorf("%+v, %v", entries, err)
	}
}

func second(_ []byte, err error) error { return err }

// The storage returns lists in pages.
func TestLongLists(t *testing.T) {
	b := open(t, quelltest.NewS3(t, "quell"), "quell")
	var all sync.WaitGroup
	var failed atomic.Int64
	for i := range 8 {
		all.Go(func() {
			for k := range 140 {
				if b.Create(t.Context(), fmt.Sprintf("log/%04d", 140*i+k), nil) != nil {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	entries, err := b.List(t.Context(), "log")
	if err != nil || len(entries) != 8*140 || failed.Load() > 0 {
		t.Fatalf("%d entries of %d, %d not made, %v", len(entries), 8*140, failed.Load(), err)
	}
	if !slices.IsSortedFunc(entries, func(a, b store.Entry) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("they are not in order")
	}
}

// Of many concurrent attempts to create one file exactly one succeeds.
func TestOneCreates(t *testing.T) {
	b := open(t, quelltest.NewS3(t, "quell"), "quell")
	for round := range 20 {
		var made, refused atomic.Int64
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				switch err := b.Create(t.Context(), fmt.Sprint("log/", round), []byte{byte(i)}); {
				case err == nil:
					made.Add(1)
				case errors.Is(err, fs.ErrExist):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if made.Load() != 1 || refused.Load() != 7 {
			t.Fatalf("round %d: %d made it, %d were refused", round, made.Load(), refused.Load())
		}
	}
}

// TestStoreOverKillsOfTheStorage: two servers on one bucket whose storage is killed
// repeatedly. Everything committed is there, once.
func TestStoreOverKillsOfTheStorage(t *testing.T) {
	g := quelltest.NewS3(t, "quell")
	b := open(t, g, "quell")
	now := time.Date(2026, 11, 21, 13, 30, 0, 0, time.UTC)
	var stores []*store.Store
	for range 2 {
		s, err := store.Open(t.TempDir(), store.Options{Bucket: b, Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		stores = append(stores, s)
	}
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	var killer sync.WaitGroup
	failed := 0
	for n := uint64(1); n <= 30; n++ {
		for _, s := range stores { // both get each batch
			s.Add(batch(n, now))
		}
		if n%6 == 0 {
			killer.Go(func() {
				<-time.After(time.Duration(rng.Int64N(int64(30 * time.Millisecond))))
				g.Kill()
				g.Start()
			})
		}
		for _, s := range stores {
			if s.Flush() != nil {
				failed++
			}
			if _, err := s.Compact(); err != nil {
				failed++
			}
		}
		killer.Wait()
	}
	for _, s := range stores {
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	sn, err := store.ReadBucket(t.Context(), b, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	times := map[int64]int{}
	for i := range sn.Segments {
		path := filepath.Join(t.TempDir(), fmt.Sprint(i))
		if err := b.Get(t.Context(), sn.Segments[i].File, path); err != nil {
			t.Fatal(err)
		}
		rows, err := parquet.ReadFile[trace.Row](path)
		if err != nil {
			t.Fatal(err)
		}
		for k := range rows {
			times[rows[k].TS]++
		}
	}
	for n := uint64(1); n <= 30; n++ {
		if got := times[int64(sample.At(now))+int64(n)]; got != 1 {
			t.Errorf("batch %d is there %d times", n, got)
		}
	}
	t.Logf("5 kills: %d flushes and merges failed, %d segments", failed, len(sn.Segments))
}

func batch(n uint64, now time.Time) *store.Batch {
	return &store.Batch{Source: store.Source{Stream: "samples", Machine: "m", Boot: "a"}, N: n, Samples: []sample.Sample{
		{TS: sample.At(now) + sample.Millis(n), Machine: "m", Job: "j", Task: "/t", Platform: "p", Signal: sample.CPI, CPU: 1, Cost: 1, Coverage: 1}}}
}

// Storage that accepts every write is refused.
func TestUnconditionalStorageIsRefused(t *testing.T) {
	quelltest.S3Env(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Header().Set("ETag", `"x"`) }))
	defer s.Close()
	if _, err := Open(t.Context(), Options{Bucket: "quell", Endpoint: s.URL}); !errors.Is(err, ErrUnconditional) {
		t.Errorf("opened: %v", err)
	}
}

// AWS answers 409 while another server creates the same file: neither has failed yet.
func TestAConflictIsTriedAgain(t *testing.T) {
	quelltest.S3Env(t)
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch asked.Add(1) {
		case 1:
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, "<Error><Code>ConditionalRequestConflict</Code></Error>")
		case 2:
			w.Header().Set("ETag", `"x"`)
		default:
			w.WriteHeader(http.StatusPreconditionFailed)
			fmt.Fprint(w, "<Error><Code>PreconditionFailed</Code></Error>")
		}
	}))
	defer s.Close()
	if _, err := Open(t.Context(), Options{Bucket: "quell", Endpoint: s.URL}); err != nil || asked.Load() != 3 {
		t.Errorf("%d requests, %v", asked.Load(), err)
	}
}

func TestNoStorage(t *testing.T) {
	quelltest.S3Env(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := Open(ctx, Options{Bucket: "quell", Endpoint: "http://127.0.0.1:1"}); err == nil || !strings.Contains(err.Error(), "s3://quell/") {
		t.Errorf("opened: %v", err)
	}
}
