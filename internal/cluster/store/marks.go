package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/quell-dev/quell/internal/core/sample"
)

// sourceMark is a source with its mark.
type sourceMark struct {
	Source
	Mark
}

// sourceMarks are the marks of many sources in the log. Few are a list of objects; many are stored by column, as a JSON
// object of lists in zstd, in base64 text. With 6,000 machines each commit would otherwise be 0.9 MB.
type sourceMarks []sourceMark

// fewMarks is up to which number they are a human-readable list.
const fewMarks = 32

// mostUnpacked bounds the memory for marks in a damaged file: those of a million machines have less.
const mostUnpacked = 256 << 20

// columns are sourceMarks by column.
type columns struct {
	Streams  []string        `json:"stream"`
	Machines []string        `json:"machine"`
	Boots    []string        `json:"boot"`
	Highs    []uint64        `json:"high"`
	Seens    []uint64        `json:"seen"`
	Ats      []sample.Millis `json:"at"` // each as difference to the previous one
}

// listMarks returns the marks in the order of their sources.
func listMarks(marks map[Source]Mark) sourceMarks {
	all := make(sourceMarks, 0, len(marks))
	for _, source := range slices.SortedFunc(maps.Keys(marks), func(a, b Source) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Boot, b.Boot))
	}) {
		all = append(all, sourceMark{source, marks[source]})
	}
	return all
}

// MarshalJSON implements json.Marshaler.
func (m sourceMarks) MarshalJSON() ([]byte, error) {
	if len(m) <= fewMarks {
		return json.Marshal([]sourceMark(m))
	}
	var c columns
	last := sample.Millis(0)
	for i := range m {
		s := &m[i]
		c.Streams, c.Machines, c.Boots = append(c.Streams, s.Stream), append(c.Machines, s.Machine), append(c.Boots, s.Boot)
		c.Highs, c.Seens, c.Ats = append(c.Highs, s.High), append(c.Seens, s.Seen), append(c.Ats, s.At-last)
		last = s.At
	}
	text, err := json.Marshal(&c)
	if err != nil {
		return nil, err
	}
	// With default options it would use 17 MB for 60 KB.
	codec, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	return json.Marshal(codec.EncodeAll(text, nil))
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *sourceMarks) UnmarshalJSON(text []byte) error {
	if !bytes.HasPrefix(text, []byte{'"'}) {
		return json.Unmarshal(text, (*[]sourceMark)(m))
	}
	var packed []byte
	if err := json.Unmarshal(text, &packed); err != nil {
		return err
	}
	codec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(mostUnpacked))
	if err != nil {
		return fmt.Errorf("unpack marks: %w", err)
	}
	defer codec.Close()
	plain, err := codec.DecodeAll(packed, nil)
	if err != nil {
		return fmt.Errorf("unpack marks: %w", err)
	}
	var c columns
	if err := json.Unmarshal(plain, &c); err != nil {
		return fmt.Errorf("unpack marks: %w", err)
	}
	n := len(c.Streams)
	if len(c.Machines) != n || len(c.Boots) != n || len(c.Highs) != n || len(c.Seens) != n || len(c.Ats) != n {
		return fmt.Errorf("unpack marks: columns of %d, %d, %d, %d, %d and %d", n, len(c.Machines), len(c.Boots), len(c.Highs), len(c.Seens), len(c.Ats))
	}
	*m = make(sourceMarks, n)
	at := sample.Millis(0)
	for i := range *m {
		at += c.Ats[i]
		(*m)[i] = sourceMark{Source{c.Streams[i], c.Machines[i], c.Boots[i]}, Mark{c.Highs[i], c.Seens[i], at}}
	}
	return nil
}
