package incident

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

func TestWhatWasNotMeasuredIsNullInJSON(t *testing.T) {
	in := []Value{1.5, Value(math.NaN()), Value(math.Inf(1)), 0}
	text, err := json.Marshal(in)
	if err != nil || string(text) != "[1.5,null,null,0]" {
		t.Fatalf("%s, %v", text, err)
	}
	var out []Value
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if !math.IsNaN(float64(out[1])) || !slices.Equal(out[:1], in[:1]) || out[3] != 0 {
		t.Errorf("%v", out)
	}
	if err := json.Unmarshal([]byte(`"x"`), &out[0]); err == nil {
		t.Error(`"x" was accepted`)
	}
}

// full sets every field below v, so that a field that is lost is noticed.
func full(v reflect.Value, n *int64) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString("s" + string(rune('a'+*n%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(*n)
	case reflect.Uint8:
		v.SetUint(1) // a kind, class or mode
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		full(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			full(v.Index(i), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			full(v.Field(i), n)
		}
	default:
		panic(v.Kind())
	}
}

// Everything that the planner knows of an incident and that a chart shows is in its
// record, and is read back from JSON unchanged.
func TestARecordHasEverything(t *testing.T) {
	var inc pipeline.Change
	n := int64(0)
	full(reflect.ValueOf(&inc).Elem(), &n)
	r := (*Record)(&inc)
	var lost []string
	var look func(v reflect.Value, path string)
	look = func(v reflect.Value, path string) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				look(v.Field(i), path+"."+v.Type().Field(i).Name)
			}
		case reflect.Slice:
			if v.Len() == 0 {
				lost = append(lost, path)
			}
			for i := range v.Len() {
				look(v.Index(i), path)
			}
		case reflect.Pointer:
			look(v.Elem(), path)
		default:
			if v.IsZero() {
				lost = append(lost, path)
			}
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Record
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	look(reflect.ValueOf(&back).Elem(), "")
	lost = slices.DeleteFunc(lost, func(path string) bool { return strings.HasSuffix(path, ".Key") || strings.Contains(path, ".Key.") })
	if len(lost) > 0 {
		t.Errorf("not in the record: %v", lost)
	}
	again, err := json.Marshal(&back)
	if err != nil || string(again) != string(text) {
		t.Errorf("%v: written\n%s\nread back\n%s", err, text, again)
	}
	if r.Rounds[1].Limit() != (&plan.Action{Rate: r.Rounds[1].Rate, IO: r.Rounds[1].IO, Net: r.Rounds[1].Net}).Limit() {
		t.Errorf("the round's limit reads %q", r.Rounds[1].Limit())
	}
	if r.Kind != detect.Neighbour || r.Victim.Class != sample.Batch {
		t.Errorf("kind %v of a %v task", r.Kind, r.Victim.Class)
	}
}

// old was written by an agent that had no levels yet.
const old = `{"id":"inc-1","machine":"node-3","rule":"evidence","signal":"runq","variant":"bpf","kind":"neighbour","victim":{"task":"/web"},
"began":1000,"opened":2000,"accused":2000,"updated":9000,"mode":"on","spec_mean":1,"spec_stddev":0.1,"spec_own":true,"threshold":1.2,"cost":3,"bad":3,"pairs":9,
"suspects":[{"task":"/hog","correlation":0.5,"usage":1},{"task":"/idle","correlation":0.1,"usage":1}],"antagonists":1,
"rounds":[{"id":"cap-1","suspect":{"task":"/hog"},"correlation":0.5,"rate":0.1,"from":2000,"until":5000,"by":"quell","cost_before":3,"cost_under":null,"relative_cost":null,"samples":0}],
"reason":"x","times":null,"victim_cost":null,"suspect_usage":null}`

// A log of an older agent can be read: a suspect above the bar was named, and the only
// analysis is also the latest.
func TestAnOldLogIsRead(t *testing.T) {
	var r Record
	if err := json.Unmarshal([]byte(old), &r); err != nil {
		t.Fatal(err)
	}
	named := r.Named()
	if len(named) != 1 || named[0].Suspect.Name != "/hog" || named[0].From != 2000 || named[0].Until != 9000 {
		t.Errorf("it named %+v", named)
	}
	if s := r.Antagonist(); s == nil || s.Name != "/hog" {
		t.Errorf("the antagonist is %+v", s)
	}
	if now := r.Now(); now.Kind != detect.Neighbour || now.Cost != 3 || now.Reason != "x" || len(now.Suspects) != 2 {
		t.Errorf("it stands at %+v", now)
	}
	if s := r.Find(&r.Rounds[0].Suspect); s == nil || s.Correlation != 0.5 {
		t.Errorf("%+v was capped", s)
	}
	all := r.Listed()
	if len(all) != 2 || all[0].Suspect.Level != detect.Likely || all[0].From != 2000 || all[1].Suspect.Name != "/idle" || all[1].Suspect.Level != detect.None || all[1].From != 0 || r.Ranks()["/idle"] != 2 {
		t.Errorf("it lists %+v", all)
	}
	if x := r.Rounds[0]; !math.IsNaN(float64(x.UsageBefore)) || !math.IsNaN(float64(x.MissesUnder)) || !math.IsNaN(float64(x.CostUnder)) || x.CostBefore != 3 {
		t.Errorf("what it did not measure is %+v", x)
	}
	r.Rounds[0].Outcome = plan.Noise
	if all := r.Listed(); all[0].Suspect.Level != detect.Possible {
		t.Errorf("after a cap in vain it lists %+v", all[0])
	}
	r.Rounds[0].Outcome = ""
	r.End(12000, "the agent was restarted")
	if r.Closed != 12000 || r.Updated != 12000 || r.NotDone != "the agent was restarted" || r.Reason != "x" || r.Outcome != plan.NotMeasured ||
		r.Rounds[0].Ended != 12000 || r.Rounds[0].Outcome != plan.NotMeasured {
		t.Errorf("it ended as %+v", r)
	}
	r.Updated = 13000 // by a clock that was set back before the agent was started again
	if r.End(12000, ""); r.Closed != 13000 || r.Updated != 13000 {
		t.Errorf("its newest state is older than others: %+v", r)
	}
}

// A suspect that was named and then capped in vain is no longer counted, but it is still
// the incident's antagonist. Another one that stays named takes precedence.
func TestTheAntagonistOfARecord(t *testing.T) {
	suspect := func(name sample.TaskName, l detect.Level) detect.Suspect {
		return detect.Suspect{Task: sample.Task{Name: name}, Grounds: detect.Grounds{Level: l}}
	}
	vain, sure := suspect("/decoy", detect.Possible), suspect("/hog", detect.Proven)
	r := Record{Incident: plan.Incident{Analysis: plan.Analysis{Analysed: 1, Result: detect.Result{Kind: detect.Neighbour, Suspects: []detect.Suspect{vain}}}, Findings: []plan.Finding{{Suspect: vain}},
		Latest: &plan.Analysis{Result: detect.Result{Kind: detect.Nobody, Suspects: []detect.Suspect{suspect("/late", detect.None)}}}}}
	if s := r.Antagonist(); s == nil || s.Name != "/decoy" || len(r.Named()) != 1 {
		t.Errorf("capped in vain: %+v of %+v", s, r.Named())
	}
	if s := r.Find(&sample.Task{Name: "/late"}); s == nil || r.Now().Kind != detect.Nobody || r.Kind != detect.Neighbour {
		t.Errorf("the latest has %+v", s)
	}
	r.Suspects, r.Antagonists, r.Findings = []detect.Suspect{sure, vain}, 1, append(r.Findings, plan.Finding{Suspect: sure})
	if s := r.Antagonist(); s == nil || s.Name != "/hog" || len(r.Named()) != 2 {
		t.Errorf("another is named: %+v of %+v", s, r.Named())
	}
	if s := (&Record{Incident: plan.Incident{Analysis: plan.Analysis{Result: detect.Result{Suspects: []detect.Suspect{vain}}}}}).Antagonist(); s != nil {
		t.Errorf("no task was named: %+v", s)
	}
}
