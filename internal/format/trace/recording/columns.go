package recording

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/keyed"
	"github.com/quell-dev/quell/internal/format/trace"
)

//go:embed maps/*.yaml
var maps embed.FS

// Columns says what the columns of a CSV are.
type Columns struct {
	About     string `key:"about" help:"purpose"`
	Header    bool   `key:"header" help:"whether the first line names the columns; if not, they are numbered from 1"`
	Separator string `key:"separator" help:"field separator, one character"`
	Counters  bool   `key:"counters" help:"whether numbers are cumulative counters"`
	TS        Column `key:"ts"`
	Machine   Column `key:"machine"`
	Job       Column `key:"job"`
	Task      Column `key:"task"`
	Platform  Column `key:"platform"`
	Signal    Column `key:"signal"`
	Variant   Column `key:"variant"`
	Class     Column `key:"class"`
	CPU       Column `key:"cpu"`
	Cost      Column `key:"cost"`
	LLCMisses Column `key:"llc_misses"`
}

// Column is the source of a sample's field: a column, two columns, or a value that is
// the same in every row.
type Column struct {
	Column string  `key:"column" help:"column name, or number from 1"`
	And    string  `key:"and" help:"a second column: names are joined with a slash"`
	Per    string  `key:"per" help:"a second column: numbers are divided by it"`
	Is     string  `key:"is" help:"the value in every row, instead of a column"`
	Unit   string  `key:"unit" help:"of a time: s, ms, us, ns or text (ISO 8601); of counted CPU time: s, ms, us or ns"`
	Scale  float64 `key:"scale" help:"numbers are multiplied by it"`
}

// Maps lists the names of the built-in column maps.
func Maps() []string {
	files, _ := fs.Glob(maps, "maps/*.yaml")
	for i, f := range files {
		files[i] = strings.TrimSuffix(path.Base(f), ".yaml")
	}
	return files
}

// LoadColumns reads a column map: a built-in one by its name, or a file.
func LoadColumns(name string) (*Columns, error) {
	text, err := maps.ReadFile("maps/" + name + ".yaml")
	if err != nil {
		if text, err = os.ReadFile(name); err != nil {
			return nil, fmt.Errorf("read column map: %w", err)
		}
	}
	return ParseColumns(name, text)
}

// ParseColumns reads a column map from YAML; its error lists everything that is wrong.
func ParseColumns(name string, text []byte) (*Columns, error) {
	c := &Columns{Separator: ",", Signal: Column{Is: "cpi"}}
	r := keyed.Reader{File: name}
	if err := r.Document(c, text); err != nil {
		return nil, fmt.Errorf("read column map: %w", err)
	}
	need := func(key string, col Column) {
		if col.Column == "" && col.Is == "" {
			r.Add(key, "nothing", "column: with a column's name or number", r.Near(key))
		}
	}
	need("ts", c.TS)
	need("task", c.Task)
	need("cpu", c.CPU)
	need("cost", c.Cost)
	if len(c.Separator) != 1 {
		r.Add("separator", strconv.Quote(c.Separator), "one character", r.Where("separator"))
	}
	if _, ok := units[c.TS.Unit]; !ok && c.TS.Unit != "text" {
		r.Add("ts.unit", strconv.Quote(c.TS.Unit), "s, ms, us, ns or text", r.Near("ts.unit"))
	}
	if _, ok := units[c.CPU.Unit]; !ok && (c.Counters || c.CPU.Unit != "") {
		r.Add("cpu.unit", strconv.Quote(c.CPU.Unit), "s, ms, us or ns, with counters: true", r.Near("cpu.unit"))
	}
	if c.Counters && c.Cost.Per == "" {
		r.Add("cost.per", "nothing", "the counter that cost.column is divided by", r.Near("cost"))
	}
	if len(r.Problems) > 0 {
		return nil, &keyed.InvalidError{What: "column map", Problems: r.Problems}
	}
	return c, nil
}

// units are the units of time in seconds.
var units = map[string]float64{"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

// counted is whose counters a row has: tasks of the same name may be on several machines.
type counted struct {
	machine string
	task    sample.TaskName
	signal  sample.SignalName
}

// mapped reads a CSV by a column map.
type mapped struct {
	trace.Contents
	rows   *trace.Rows
	c      *Columns
	at     map[string]int // columns of the header
	fields [][]byte
	before map[counted]reading
	names  trace.Names
	err    error // of the row that is parsed
}

func newMapped(r io.Reader, c *Columns) (Reader, error) {
	m := &mapped{rows: trace.NewRows(r, c.Separator[0]), c: c, before: map[counted]reading{}, names: trace.Names{}}
	if !c.Header {
		return m, nil
	}
	line, err := m.rows.Next()
	if err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	fields, ok := m.rows.Split(line)
	if !ok {
		return nil, errors.New("read header: malformed quotes")
	}
	m.at = map[string]int{}
	for i, f := range fields {
		m.at[strings.TrimSpace(string(f))] = i
	}
	for _, col := range []Column{c.TS, c.Machine, c.Job, c.Task, c.Platform, c.Signal, c.Variant, c.Class, c.CPU, c.Cost, c.LLCMisses} {
		for _, name := range []string{col.Column, col.And, col.Per} {
			if _, ok := m.at[name]; name != "" && !ok {
				err = errors.Join(err, fmt.Errorf("no column %s", name))
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	return m, nil
}

// Read implements Reader.
func (m *mapped) Read(s *sample.Sample) error {
	for {
		line, err := m.rows.Next()
		if err != nil && err != trace.ErrLong {
			return err
		}
		if err == nil && len(line) == 0 {
			continue
		}
		some := false
		if err == nil {
			some, err = m.parse(line, s)
		}
		if err != nil {
			m.Found.Skip(1, "line %d: %v", m.rows.Line(), err)
			continue
		}
		if some {
			m.Found.Rows++
			return nil
		}
	}
}

func (m *mapped) parse(line []byte, s *sample.Sample) (bool, error) {
	var ok bool
	if m.fields, ok = m.rows.Split(line); !ok {
		return false, errors.New("malformed quotes")
	}
	m.err = nil
	at, err := m.time(m.c.TS)
	m.fail("ts", err)
	*s = sample.Sample{Coverage: 1, TS: at}
	s.Machine, s.Job, s.Task = m.name("machine", m.c.Machine), sample.JobName(m.name("job", m.c.Job)), sample.TaskName(m.name("task", m.c.Task))
	s.Platform, s.Signal, s.Variant = sample.Platform(m.name("platform", m.c.Platform)), sample.SignalName(m.name("signal", m.c.Signal)), m.name("variant", m.c.Variant)
	if class := m.name("class", m.c.Class); class != "" {
		s.Class, err = sample.ParseClass(class)
		m.fail("class", err)
	}
	cpu, misses := m.number("cpu", m.c.CPU), m.number("llc_misses", m.c.LLCMisses)
	if !m.c.Counters {
		s.CPU, s.Cost = float32(cpu), float32(m.number("cost", m.c.Cost))
		if misses >= 0 {
			s.Extras.Set(sample.LLCMisses, misses)
		}
		return true, cmp.Or(m.err, trace.Check(s))
	}
	now := reading{at: at, s: cpu * units[m.c.CPU.Unit], misses: misses}
	now.cycles = m.number("cost", Column{Column: m.c.Cost.Column, Scale: m.c.Cost.Scale})
	now.instructions = m.number("cost", Column{Column: m.c.Cost.Per})
	if m.err != nil {
		return false, m.err
	}
	of := counted{s.Machine, s.Task, s.Signal}
	prev, known := m.before[of]
	if known && at <= prev.at {
		return false, errors.New("not later than the row of the task before it: sort the recording")
	}
	m.before[of] = now
	if !known || !now.since(prev, s) {
		return false, nil
	}
	return true, trace.Check(s)
}

// fail keeps the first error of a row.
func (m *mapped) fail(key string, err error) {
	if m.err == nil && err != nil {
		m.err = fmt.Errorf("%s: %w", key, err)
	}
}

// field finds a column by its name or number.
func (m *mapped) field(name string) ([]byte, error) {
	i, ok := m.at[name]
	if !ok {
		n, err := strconv.Atoi(name)
		if err != nil {
			return nil, fmt.Errorf("no column %s", name)
		}
		i = n - 1
	}
	if i < 0 || i >= len(m.fields) {
		return nil, fmt.Errorf("the row has %d fields", len(m.fields))
	}
	return m.fields[i], nil
}

func (m *mapped) name(key string, c Column) string {
	if c.Column == "" {
		return c.Is
	}
	f, err := m.field(c.Column)
	if err == nil && c.And != "" {
		var g []byte
		g, err = m.field(c.And)
		f = []byte(string(f) + "/" + string(g))
	}
	m.fail(key, err)
	return m.names.Intern(f)
}

// number reads a number. An empty field, or a column that is not mapped, is not
// measured: NaN.
func (m *mapped) number(key string, c Column) float64 {
	v := math.NaN()
	var err error
	switch {
	case c.Is != "":
		v, err = strconv.ParseFloat(c.Is, 64)
	case c.Column != "":
		v, err = m.parseField(c.Column)
	}
	if err == nil && c.Per != "" {
		var by float64
		by, err = m.parseField(c.Per)
		if v /= by; by == 0 {
			v = math.NaN()
		}
	}
	m.fail(key, err)
	if c.Scale != 0 {
		v *= c.Scale
	}
	return v
}

func (m *mapped) parseField(name string) (float64, error) {
	f, err := m.field(name)
	if err != nil || len(f) == 0 {
		return math.NaN(), err
	}
	return strconv.ParseFloat(string(f), 64)
}

func (m *mapped) time(c Column) (sample.Millis, error) {
	f, err := m.field(c.Column)
	if err != nil {
		return 0, err
	}
	if c.Unit == "text" {
		t, err := time.Parse("2006-01-02T15:04:05.999999999Z07:00", string(f))
		if err != nil {
			t, err = time.Parse("2006-01-02T15:04:05.999999999", string(f))
		}
		return sample.At(t), err
	}
	if n, err := strconv.ParseInt(string(f), 10, 64); err == nil {
		switch c.Unit { // exact also where a float is not
		case "ns":
			return sample.Millis(n / 1e6), nil
		case "us":
			return sample.Millis(n / 1e3), nil
		case "ms":
			return sample.Millis(n), nil
		}
	}
	v, err := strconv.ParseFloat(string(f), 64)
	if err == nil && !(math.Abs(v*units[c.Unit]) < 1e12) {
		err = fmt.Errorf("invalid time %s", f)
	}
	return sample.Millis(math.Round(v * units[c.Unit] * 1000)), err
}
