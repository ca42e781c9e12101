package wire_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var update = flag.Bool("update", false, "accept the messages as they are encoded now")

func TestMain(m *testing.M) { quelltest.Main(m) }

// batch is a tick of a machine with n tasks, as an agent collects it.
func batch(n int, seed uint64) *wire.Batch {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := &wire.Batch{Key: wire.Key{Machine: "node-17.example.org", Boot: "m1x2y3z4-abcdef", N: 12345}, At: 1_790_000_000_000}
	for i := range n {
		job := fmt.Sprintf("job-%02d", i/4)
		s := sample.Sample{TS: b.At - 3, Machine: b.Machine, Job: sample.JobName(job),
			Task:     sample.TaskName(fmt.Sprintf("/kubepods/burstable/pod%08x-%04x/%s", rng.Uint32(), rng.Uint32N(1<<16), job)),
			Platform: "AuthenticAMD/25/1/1/kvm", Signal: sample.CPI, Variant: "ref-cycles", Class: sample.Class(rng.IntN(3)),
			CPU: rng.Float32() * 4, Cost: 0.5 + rng.Float32(), Coverage: 1}
		if rng.IntN(10) == 0 {
			s.Flags = sample.Flags(rng.IntN(32))
		}
		b.Samples = append(b.Samples, s)
	}
	return b
}

// strange is a batch with unusual values in all fields.
func strange(n int, rng *rand.Rand) *wire.Batch {
	b := batch(n, rng.Uint64())
	b.N, b.At = rng.Uint64(), sample.Millis(rng.Int64()-rng.Int64())/4
	floats := []float32{0, float32(math.Copysign(0, -1)), float32(math.NaN()), float32(math.Inf(1)), math.MaxFloat32, 1e-45, 1}
	names := []string{"", "a", "\xff\xfe\x00", strings.Repeat("/long", 800), "runq"}
	for i := range b.Samples {
		s := &b.Samples[i]
		s.TS = sample.Millis(rng.Int64()-rng.Int64()) / 4
		s.Job, s.Task = sample.JobName(names[rng.IntN(len(names))]), sample.TaskName(names[rng.IntN(len(names))])
		s.Signal, s.Variant = sample.SignalName(names[rng.IntN(len(names))]), names[rng.IntN(len(names))]
		s.CPU, s.Cost, s.Coverage = floats[rng.IntN(len(floats))], floats[rng.IntN(len(floats))], floats[rng.IntN(len(floats))]
		s.Flags = sample.Flags(rng.IntN(256))
		for _, e := range sample.AllExtras() {
			if rng.IntN(3) == 0 {
				s.Extras.Set(e, []float64{0, 3, 1e15 + 1, math.Inf(-1), math.NaN(), 0.1}[rng.IntN(6)])
			}
		}
	}
	return b
}

// byBits compares samples so that NaN equals NaN and −0 differs from 0.
var byBits = cmp.Options{
	cmpopts.IgnoreUnexported(wire.Batch{}),
	cmp.Comparer(func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }),
	cmp.Comparer(func(x, y sample.Extras) bool {
		for _, e := range sample.AllExtras() {
			v, ok := x.Get(e)
			w, also := y.Get(e)
			if ok != also || math.Float64bits(v) != math.Float64bits(w) {
				return false
			}
		}
		return true
	}),
}

// TestBatchComesBack: any batch is unchanged by encoding and decoding, into a reused
// batch.
func TestBatchComesBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var got wire.Batch
	for i := range 300 {
		want := strange([]int{1, 2, 7, 8, 9, 50}[i%6], rng)
		data, err := want.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := got.Decode(data); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, &got, byBits); diff != "" {
			t.Fatalf("%d samples, round %d (want −, got +):\n%s", len(want.Samples), i, diff)
		}
	}
}

// TestShape: batches have one shape exactly if their samples have, one by one, the same names and
// classes.
func TestShape(t *testing.T) {
	shape := func(change func(*wire.Batch)) uint64 {
		t.Helper()
		b := batch(20, 1)
		change(b)
		data, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		var got wire.Batch
		if err := got.Decode(data); err != nil {
			t.Fatal(err)
		}
		return got.Shape()
	}
	first := shape(func(*wire.Batch) {})
	if same := shape(func(b *wire.Batch) {
		b.N, b.At, b.Boot = 77, 88, "another"
		for i := range b.Samples {
			s := &b.Samples[i]
			s.TS, s.CPU, s.Cost, s.Coverage, s.Flags = sample.Millis(i), float32(i), 7, 0.5, sample.Flags(i%2)
		}
	}); first == 0 || same != first {
		t.Errorf("with other numbers: %x and %x", first, same)
	}
	for name, change := range map[string]func(*wire.Batch){
		"a job":      func(b *wire.Batch) { b.Samples[3].Job = "x" },
		"a task":     func(b *wire.Batch) { b.Samples[3].Task = "x" },
		"a platform": func(b *wire.Batch) { b.Samples[3].Platform = "x" },
		"a signal":   func(b *wire.Batch) { b.Samples[3].Signal = "x" },
		"a variant":  func(b *wire.Batch) { b.Samples[3].Variant = "x" },
		"a class":    func(b *wire.Batch) { b.Samples[3].Class = (b.Samples[3].Class + 1) % 3 },
		"the order":  func(b *wire.Batch) { b.Samples[3], b.Samples[4] = b.Samples[4], b.Samples[3] },
		"fewer":      func(b *wire.Batch) { b.Samples = b.Samples[:19] },
		"more":       func(b *wire.Batch) { b.Samples = append(b.Samples, b.Samples[19]) },
	} {
		if other := shape(change); other == first {
			t.Errorf("%s is another, the shape is not", name)
		}
	}
}

// A Repeater encodes the same as Encode for the same batch.
func TestRepeater(t *testing.T) {
	b := batch(50, 7)
	for i := range b.Samples {
		b.Samples[i].TS = b.At
	}
	r, err := wire.NewRepeater(b)
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint64(3) {
		b.N, b.At = 10+n, b.At+1000
		var cpu, cost []float32
		for i := range b.Samples {
			s := &b.Samples[i]
			s.TS, s.CPU, s.Cost = b.At, float32(i), float32(n)+float32(i)/3
			cpu, cost = append(cpu, s.CPU), append(cost, s.Cost)
		}
		var got wire.Batch
		if err := got.Decode(r.Encode(b.N, b.At, cpu, cost)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b, &got, byBits); diff != "" {
			t.Fatalf("batch %d (want −, got +):\n%s", b.N, diff)
		}
	}
}

func TestBatchBound(t *testing.T) {
	b := batch(wire.MaxSamples, 1)
	data, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var got wire.Batch
	if err := got.Decode(data); err != nil || len(got.Samples) != wire.MaxSamples {
		t.Fatalf("%d samples, %v", len(got.Samples), err)
	}
	b.Samples = append(b.Samples, b.Samples[0])
	if _, err := b.Encode(); err == nil {
		t.Error("a batch past the bound was encoded")
	}
}

// A batch that is inconsistent in any part is refused.
func TestBatchRefused(t *testing.T) {
	for name, break_ := range map[string]func(*wire.Columns){
		"more rows than values": func(c *wire.Columns) { c.Rows++ },
		"rows past the bound":   func(c *wire.Columns) { c.Rows, c.Class = 1<<30, []wire.Class{1} },
		"no rows": func(c *wire.Columns) {
			*c = wire.Columns{Version: c.Version, Type: c.Type, Machine: "m", Boot: "b", N: 1 << 60}
		},
		"a name past the bound": func(c *wire.Columns) {
			c.Text, c.Lengths = append(c.Text, make([]byte, 4097)...), append(c.Lengths, 4097)
		},
		"no type":                    func(c *wire.Columns) { c.Type = 0 },
		"another type":               func(c *wire.Columns) { c.Type = wire.Type_TYPE_SPECS },
		"an old version":             func(c *wire.Columns) { c.Version = 1 },
		"a long column":              func(c *wire.Columns) { c.Cost = append(c.Cost, 1) },
		"no such name":               func(c *wire.Columns) { c.Task[1] = 1 << 20 },
		"no dictionary":              func(c *wire.Columns) { c.Text, c.Lengths = nil, nil },
		"dictionary past its text":   func(c *wire.Columns) { c.Lengths[0]++ },
		"text past the dictionary":   func(c *wire.Columns) { c.Text = append(c.Text, 'x') },
		"too many names":             func(c *wire.Columns) { c.Lengths = append(make([]uint32, 1<<15), c.Lengths...) },
		"no class":                   func(c *wire.Columns) { c.Class = nil },
		"class past a byte":          func(c *wire.Columns) { c.Class[0] = 300 },
		"negative class":             func(c *wire.Columns) { c.Class[0] = -1 },
		"extra without a name":       func(c *wire.Columns) { c.Extras[0].Name = 1 << 20 },
		"extra of both kinds":        func(c *wire.Columns) { c.Extras[0].Doubles, c.Extras[0].Floats = []float64{1}, []float32{1} },
		"extra with too few values":  func(c *wire.Columns) { c.Extras[0].Floats = c.Extras[0].Floats[1:] },
		"extra with too many values": func(c *wire.Columns) { c.Extras[0].Floats = append(c.Extras[0].Floats, 1) },
		"extra with few rows":        func(c *wire.Columns) { c.Extras[0].Rows = []byte{1} },
	} {
		b := batch(20, 1)
		for i := range b.Samples {
			b.Samples[i].Extras.Set(sample.Threads, 3)
		}
		data, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		var c wire.Columns
		if err := wire.Unmarshal(data, &c); err != nil {
			t.Fatal(err)
		}
		break_(&c)
		if data, err = proto.Marshal(&c); err != nil {
			t.Fatal(err)
		}
		var got wire.Batch
		if err := got.Decode(data); err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
}

// TestAttackSamplesThatTakeNoBytes: a batch of equal samples has each column's value once, 4096 in 70 bytes. A delivery of
// 1 MB would be 33 million: others would wait a quarter of a minute for each, and a machine may have ten of them wait.
func TestAttackSamplesThatTakeNoBytes(t *testing.T) {
	for name, c := range map[string]struct {
		rows  int
		equal bool
	}{
		"one sample": {1, true}, "few that are equal": {20, true}, "many that are equal": {wire.MaxSamples, true}, "many": {wire.MaxSamples, false},
	} {
		b := wire.Batch{Key: wire.Key{Machine: "m1", Boot: "b", N: 1}, Samples: make([]sample.Sample, c.rows)}
		for i := range b.Samples {
			b.Samples[i] = sample.Sample{Signal: "cpi"}
			if !c.equal {
				b.Samples[i].Task = sample.TaskName(fmt.Sprint(i))
			}
		}
		data, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := new(wire.Batch).Decode(data); (err != nil) != (c.rows > len(data)) || (err != nil) != (name == "many that are equal") {
			t.Errorf("%s, %d samples in %d bytes: %v", name, c.rows, len(data), err)
		}
	}
}

// TestNewerAgent: a newer agent sends columns, extras and names that this side does not
// know. The rest of the batch is decoded unchanged.
func TestNewerAgent(t *testing.T) {
	b := batch(5, 1)
	for i := range b.Samples {
		b.Samples[i].Extras.Set(sample.Wakeups, float64(i))
	}
	data, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var c wire.Columns
	if err := wire.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	c.Text, c.Lengths = append(c.Text, "l2_misses"...), append(c.Lengths, 9)
	c.Extras = append(c.Extras, &wire.Extra{Name: uint32(len(c.Lengths) - 1), Floats: []float32{1, 2, 3, 4, 5}})
	if data, err = proto.Marshal(&c); err != nil {
		t.Fatal(err)
	}
	data = protowire.AppendTag(data, 100, protowire.BytesType)
	data = protowire.AppendBytes(data, []byte("a column to come"))
	var got wire.Batch
	if err := got.Decode(data); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b, &got, byBits); diff != "" {
		t.Errorf("want −, got +:\n%s", diff)
	}
}

func TestVersions(t *testing.T) {
	for version, ok := range map[uint32]bool{0: false, wire.Version - 1: false, wire.Version: true, wire.Version + 1: false} {
		data, err := proto.Marshal(&wire.Record{Version: version, Type: wire.Type_TYPE_RECORD, Id: "x"})
		if err != nil {
			t.Fatal(err)
		}
		var r wire.Record
		err = wire.Unmarshal(data, &r)
		var refused *wire.VersionError
		if ok != (err == nil) || !ok && (!errors.As(err, &refused) || refused.Got != version) {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

// TestUnknownFieldsSurvive: fields of specs that a newer server has written survive a
// change by an older one.
func TestUnknownFieldsSurvive(t *testing.T) {
	data, err := wire.Marshal(&wire.Specs{Job: "web", Revision: 1})
	if err != nil {
		t.Fatal(err)
	}
	data = protowire.AppendTag(data, 99, protowire.BytesType)
	data = protowire.AppendBytes(data, []byte("quantiles"))
	var m wire.Specs
	if err := wire.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	m.Revision = 2
	if data, err = wire.Marshal(&m); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte("quantiles")) {
		t.Error("the field is gone")
	}
}

func TestSpecsComeBack(t *testing.T) {
	var want []spec.Spec
	for i, state := range []spec.State{spec.Learning, spec.Insufficient, spec.Ready, spec.Stale} {
		want = append(want, spec.Spec{Key: spec.Key{Job: "web", Platform: "p", Signal: sample.CPI, Variant: fmt.Sprint(i)}, State: state,
			Samples: 1000, Tasks: 7, CPUMean: 0.5, Mean: 1.25, StdDev: 0.125, SelfSamples: 900, SelfMean: 0.1, SelfStdDev: 0.01, Updated: 99, Sigmas: float64(i)})
	}
	other := want[0]
	other.Job = "batch"
	m := wire.SpecsOf("web", "p", 3, append(want, other))
	if diff := cmp.Diff(want, m.List()); diff != "" {
		t.Errorf("want −, got +:\n%s", diff)
	}
	m.Specs[2].State = 17
	if got := m.List()[2].State; got != spec.Insufficient {
		t.Errorf("a state to come is %s", got)
	}
	for _, bad := range []float64{-1, 1e9, math.NaN(), math.Inf(1)} {
		m.Specs[2].Sigmas = bad
		if got := m.List()[2].Sigmas; got != 0 {
			t.Errorf("%v standard deviations are %v", bad, got)
		}
	}
}

// golden holds messages of version 2, which must stay readable for ever. A new version
// gets a new file; this one stays.
const golden = "testdata/v2.txt"

func TestGoldenBytes(t *testing.T) {
	messages := map[string]func() ([]byte, error){
		"batch": func() ([]byte, error) {
			b := batch(3, 7)
			b.Samples[1].Extras.Set(sample.Cycles, 123456789)
			b.Samples[1].Extras.Set(sample.CPUStall, 0.1)
			return b.Encode()
		},
		"record": func() ([]byte, error) {
			return wire.Marshal(&wire.Record{Machine: "m", Boot: "b", N: 2, At: 5, Kind: wire.Record_KIND_INCIDENT, Id: "i", Json: []byte(`{"id":"i"}`)})
		},
		"specs": func() ([]byte, error) {
			return wire.Marshal(wire.SpecsOf("web", "p", 3, []spec.Spec{{Key: spec.Key{Job: "web", Platform: "p", Signal: "cpi"}, State: spec.Ready,
				Samples: 10, Tasks: 2, Mean: 1.5, StdDev: 0.25, Updated: 7}}))
		},
		"signed": func() ([]byte, error) {
			return wire.Marshal(&wire.SignedDecisions{Decisions: []byte("d"), Signer: "j", Signature: []byte("s")})
		},
		"decisions": func() ([]byte, error) {
			cap := command.CapTask("/t", 0.1, 5*time.Minute, "test")
			d := command.Decide("d1", "anna", 7, cap)
			d.Rollout = &command.Rollout{Step: 1, Since: 8, Every: command.Duration(time.Hour), Below: 1 << 63, Stopped: "x"}
			return wire.Marshal(&wire.Decisions{Machine: "m", Revision: 9, Signed: 10, Fresh: 11, List: []*wire.Command{wire.EncodeDecision(&d)}})
		},
		"state": func() ([]byte, error) {
			return wire.Marshal(&wire.State{Machine: "m", All: 1, Own: 2, Agent: "v1", Mode: "on", From: "decision", By: "d1",
				Outcomes: []*wire.Reply{{Id: "d1", Ok: true, Message: "done", Cap: "k", Tasks: 1, Refused: []string{"/b"}}}})
		},
	}
	text, err := os.ReadFile(golden)
	if err != nil && !*update {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, name := range []string{"batch", "record", "specs", "signed", "decisions", "state"} {
		data, err := messages[name]()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s %s\n", name, hex.EncodeToString(data))
	}
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(text), out.String()); diff != "" {
		t.Errorf("messages are encoded otherwise than by version %d (want −, got +):\n%s", wire.Version, diff)
	}
}

func FuzzBatch(f *testing.F) {
	for _, b := range []*wire.Batch{batch(1, 1), batch(9, 1), strange(9, rand.New(rand.NewPCG(3, 4)))} {
		data, err := b.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	// Columns in several pieces, unpacked, and of the wrong type.
	odd := protowire.AppendVarint(protowire.AppendTag(nil, 10, protowire.VarintType), 3)
	odd = protowire.AppendBytes(protowire.AppendTag(odd, 10, protowire.BytesType), []byte{1, 0x80, 1})
	odd = protowire.AppendFixed32(protowire.AppendTag(odd, 17, protowire.Fixed32Type), 7)
	odd = protowire.AppendFixed64(protowire.AppendTag(odd, 17, protowire.Fixed64Type), 7)
	f.Add(append(odd, 8, 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		var b, again wire.Batch
		err := b.Decode(data)
		// Decoding and encoding with package proto gives the same batch, or one that is
		// refused as well.
		var c wire.Columns
		if bad := proto.Unmarshal(data, &c); bad != nil {
			if err == nil {
				t.Fatalf("proto refuses what was read: %v", bad)
			}
			return
		}
		canonical, bad := proto.Marshal(&c)
		if bad != nil {
			t.Fatal(bad)
		}
		if bad := again.Decode(canonical); (bad == nil) != (err == nil) {
			t.Fatalf("as it came: %v; as proto writes it: %v", err, bad)
		}
		if err != nil {
			return
		}
		if diff := cmp.Diff(&b, &again, byBits); diff != "" {
			t.Fatalf("as it came −, as proto writes it +:\n%s", diff)
		}
		if len(b.Samples) > wire.MaxSamples {
			t.Fatalf("%d samples", len(b.Samples))
		}
		if data, err = b.Encode(); err != nil {
			t.Fatal(err)
		}
		if err := again.Decode(data); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&b, &again, byBits); diff != "" {
			t.Errorf("encoded again it is another batch:\n%s", diff)
		}
	})
}

func FuzzName(f *testing.F) {
	for _, s := range []string{"", "=", "web", "a.b", "=2E", "=2e", "é", "=", "=4", "a>*"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token := wire.Token(s)
		if strings.ContainsAny(token, ".*> \t\r\n") || token == "" {
			t.Errorf("%q is %q, no word of a subject", s, token)
		}
		if back, err := decodeToken(token); err != nil || back != s {
			t.Errorf("%q is %q, which is %q, %v", s, token, back, err)
		}
		if name, err := decodeToken(s); err == nil && wire.Token(name) != s {
			t.Errorf("two words for %q", name)
		}
	})
}

// BenchmarkBatch reports the size of a sample and the cost of encoding and decoding, for
// the batch of the load generator.
func BenchmarkBatch(b *testing.B) {
	for _, extras := range []bool{false, true} {
		name := "base columns"
		if extras {
			name = "with five extras"
		}
		in := batch(50, 1)
		if extras {
			for i := range in.Samples {
				x := &in.Samples[i].Extras
				x.Set(sample.Cycles, 3e9+float64(i)*1e5+1)
				x.Set(sample.Instructions, 2e9+float64(i)*1e5+1)
				x.Set(sample.LLCMisses, 1e6+float64(i))
				x.Set(sample.Threads, float64(i%7))
				x.Set(sample.CPUStall, 0.01*float64(i))
			}
		}
		data, err := in.Encode()
		if err != nil {
			b.Fatal(err)
		}
		b.Run("encode/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := in.Encode(); err != nil {
					b.Fatal(err)
				}
			}
			report(b, len(data))
		})
		b.Run("decode/"+name, func(b *testing.B) {
			b.ReportAllocs()
			var out wire.Batch
			for b.Loop() {
				if err := out.Decode(data); err != nil {
					b.Fatal(err)
				}
			}
			report(b, len(data))
		})
	}
}

func report(b *testing.B, size int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/50, "ns/sample")
	b.ReportMetric(float64(size)/50, "B/sample")
}

// decodeToken is the inverse of wire.Token, which thereby is injective.
func decodeToken(token string) (string, error) {
	if token == "=" {
		return "", nil
	}
	var b strings.Builder
	for rest := token; rest != ""; {
		if rest[0] != '=' {
			b.WriteByte(rest[0])
			rest = rest[1:]
			continue
		}
		var c byte
		if len(rest) < 3 {
			return "", fmt.Errorf("token %q of a subject is truncated", token)
		}
		if _, err := fmt.Sscanf(rest[1:3], "%02X", &c); err != nil {
			return "", fmt.Errorf("token %q of a subject: %w", token, err)
		}
		b.WriteByte(c)
		rest = rest[3:]
	}
	if wire.Token(b.String()) != token {
		return "", fmt.Errorf("token %q of a subject is not the encoding of %q", token, b.String())
	}
	return b.String(), nil
}
