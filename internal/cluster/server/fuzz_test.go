package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/format/wire"
)

// TestARecordDoesNotEndTheServer: an incident with a round that is null, from one agent, ended the
// process that stores the records of all.
func TestARecordDoesNotEndTheServer(t *testing.T) {
	for _, document := range []string{`{"id":"i","rounds":[null]}`, `{"id":"i","rounds":[null,{"id":"c"},null]}`, `{"antagonists":9,"suspects":[]}`, `{"antagonists":-1,"suspects":[{}]}`} {
		b, err := RecordOf(&wire.Record{Machine: "m1", Boot: "b", N: 1, Kind: wire.Record_KIND_INCIDENT, Json: []byte(document)}, 1)
		if err != nil || len(b.Incidents) != 1 {
			t.Errorf("%s: %+v, %v", document, b, err)
		}
	}
}

// TestAttackLongNamesOfAnIncident: what is remembered of an incident is not as long as its sender likes.
func TestAttackLongNamesOfAnIncident(t *testing.T) {
	for document, most := range map[string]int{`{"id":"%s"}`: maxID, `{"signal":"%s"}`: maxName, `{"variant":"%s"}`: maxName, `{"victim":{"task":"%s"}}`: maxName, `{"victim":{"job":"%s"}}`: maxName} {
		for _, n := range []int{most, most + 1} {
			_, err := RecordOf(&wire.Record{Machine: "m1", Boot: "b", N: 1, Kind: wire.Record_KIND_INCIDENT, Json: fmt.Appendf(nil, document, strings.Repeat("x", n))}, 1)
			if (err != nil) != (n > most) {
				t.Errorf("%s, %d bytes: %v", document, n, err)
			}
		}
	}
}

// TestAttackManySuspects: what an incident may list is bounded.
func TestAttackManySuspects(t *testing.T) {
	for document, most := range map[string]int{`{"suspects":[%s]}`: maxListed, `{"latest":{"suspects":[%s]}}`: maxListed, `{"findings":[%s]}`: maxAccused,
		`{"antagonists":5000,"suspects":[%s]}`: maxAccused, `{"rounds":[%s]}`: maxCaps, `{"rounds":[{"with":[%s]}]}`: maxCaps - 1} {
		for _, n := range []int{most, most + 1} {
			list := strings.TrimSuffix(strings.Repeat("{},", n), ",")
			_, err := RecordOf(&wire.Record{Machine: "m1", Boot: "b", N: 1, Kind: wire.Record_KIND_INCIDENT, Json: fmt.Appendf(nil, document, list)}, 1)
			if (err != nil) != (n > most) {
				t.Errorf("%s, %d: %v", document, n, err)
			}
		}
	}
}

// TestAttackTextsThatRowsRepeat: an incident's rows of caps and of suspects repeat texts of it. One message of 1 MB is
// not gigabytes to be written, which would hold up all commits for minutes.
func TestAttackTextsThatRowsRepeat(t *testing.T) {
	list, suspects := strings.TrimSuffix(strings.Repeat("{},", 4900), ","), `{"task":"/a"}`
	for i := range 4899 {
		suspects += fmt.Sprintf(`,{"task":"/%d"}`, i)
	}
	for document, attack := range map[string]bool{
		`{"rounds":[{"why":"%s","with":[` + list + `]}]}`:       true,
		`{"rounds":[{"id":"%s","with":[` + list + `]}]}`:        true,
		`{"rounds":[{"by":"%s","with":[` + list + `]}]}`:        true,
		`{"rounds":[{"outcome":"%s","with":[` + list + `]}]}`:   true,
		`{"rule":"%s","rounds":[` + list + `]}`:                 true,
		`{"rule":"%s","suspects":[` + suspects + `]}`:           true,
		`{"rounds":[{"why":"%s"}]}`:                             false,
		`{"reason":"%s","rounds":[{"with":[` + list + `]}]}`:    false,
		`{"reason":"%s","suspects":[` + suspects + `]}`:         false,
		`{"suspects":[{"task":"/a","why":"%s"}]}`:               false,
		`{"rounds":[{"suspect":{"task":"/a"},"outcome":"%s"}]}`: false,
	} {
		text := strings.Replace(document, "%s", strings.Repeat("x", 900_000), 1)
		_, err := RecordOf(&wire.Record{Machine: "m1", Boot: "b", N: 1, Kind: wire.Record_KIND_INCIDENT, Json: []byte(text)}, 1)
		if (err != nil) != attack {
			t.Errorf("%.60s: %v", document, err)
		}
	}
}

// FuzzRecord: whatever an agent sends as a record, the server goes on, and what it stores is text
// that its queries can read and its API can send.
func FuzzRecord(f *testing.F) {
	f.Add(int32(1), []byte(`{"id":"i","signal":"cpi","kind":"neighbour","victim":{"task":"\"/a\\xff\"","class":"batch"},"antagonists":1,"suspects":[{"task":"/b","correlation":0.4}],"rounds":[null,{"id":"c","outcome":"noise"}],"latest":null}`))
	f.Add(int32(2), []byte(`{"at":5,"who":"quell","what":"cap","task":"/a","rate":1e308,"until":-1,"why":"\u001b[2J","result":"ok"}`))
	f.Add(int32(3), []byte(`null`))
	f.Add(int32(1), []byte(`{"victim":{"class":"none"}}`))
	f.Fuzz(func(t *testing.T, kind int32, document []byte) {
		b, err := RecordOf(&wire.Record{Machine: "m1", Boot: "b", N: 1, Kind: wire.Record_Kind(kind), Json: document}, 1)
		if err != nil {
			return
		}
		for i := range b.Incidents {
			r := &b.Incidents[i]
			if r.Machine != "m1" || !json.Valid([]byte(r.Doc)) || !utf8.ValidString(r.VictimTask+r.SuspectTask+r.CappedTask+r.VictimJob+r.ID) {
				t.Errorf("%s: stored %+v", document, r)
			}
		}
		for i := range b.Actions {
			if a := &b.Actions[i]; a.Machine != "m1" || !utf8.ValidString(a.Task+a.Why+a.By+a.Result) {
				t.Errorf("%s: stored %+v", document, a)
			}
		}
	})
}

// FuzzLeftOut: the column with names of machines is read whatever it holds.
func FuzzLeftOut(f *testing.F) {
	f.Add(`["m1","m2"]`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, text string) {
		names := machinesLeftOut(&store.Spec{LeftOut: text})
		if _, err := json.Marshal(names); err != nil {
			t.Error(err)
		}
	})
}

// FuzzRevocation: every valid revocation has a description of one line without its reason.
func FuzzRevocation(f *testing.F) {
	f.Add(`{"machine":"m1","job":"web","since":"24h","until":"1h","why":"x"}`)
	f.Add(`{"machine":"\u001b","lift":true,"why":"x"}`)
	f.Fuzz(func(t *testing.T, body string) {
		var in cluster.Revocation
		if json.Unmarshal([]byte(body), &in) == nil && in.Validate() == nil && (in.String() == "" || in.Machine+in.Job == "") {
			t.Errorf("%s: %q", body, in.String())
		}
	})
}

// FuzzQuote: a text from a client stays one literal of a statement, without a zero byte.
func FuzzQuote(f *testing.F) {
	for _, s := range []string{"a'b", `a\'b`, "'; DROP TABLE samples; --", "", "\x00", `\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		whole := strings.ReplaceAll(s, "\x00", "\uFFFD")
		if got := dialect.DuckDB().Quote(s); got[0] != '\'' || got[len(got)-1] != '\'' || strings.ReplaceAll(got[1:len(got)-1], "''", "") != strings.ReplaceAll(whole, "'", "") ||
			strings.Count(got, "'") != 2*strings.Count(s, "'")+2 {
			t.Errorf("%q: %s", s, got)
		}
		got := dialect.Spark().Quote(s)
		text := strings.NewReplacer(`\\`, "", `\'`, "").Replace(got[1 : len(got)-1])
		if strings.ContainsAny(text, "\\'\x00") {
			t.Errorf("%q on Spark: %s", s, got)
		}
	})
}
