package replay

import (
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Summary is the result of a replay as numbers, for programs.
type Summary struct {
	Rule        detect.Method `json:"rule"`
	Rows        int           `json:"rows"`            // read
	Bad         int           `json:"bad"`             // skipped: without a sample
	Late        int           `json:"late"`            // skipped: not in order of time
	Twice       int           `json:"twice,omitempty"` // skipped: of a task that has another at the same time
	Unknown     int           `json:"unknown"`         // skipped: with an unknown signal
	Samples     int           `json:"samples"`         // compared with a ready spec
	Outliers    int           `json:"outliers"`
	Anomalies   int           `json:"anomalies"`
	Accusations int           `json:"accusations"`
	Incidents   int           `json:"incidents"`
	Machines    int           `json:"machines"`
	Jobs        int           `json:"jobs"`
	From        sample.Millis `json:"from"`
	To          sample.Millis `json:"to"`
	Days        float64       `json:"machine_days"` // from the first to the last sample of each machine
	// Of a labelled recording; with two-sided 95 % confidence intervals.
	Precision *Share     `json:"precision,omitempty"`
	Recall    *Share     `json:"recall,omitempty"`
	Top1      *Share     `json:"top1,omitempty"`
	After     *AfterJSON `json:"time_to_detection,omitempty"`
	// ByCause are the shares by the labels' causes; "none" is outside all labels.
	ByCause []CauseShares `json:"by_cause,omitempty"`
	// LeftOut is the number of accusations in stretches whose truth is not known.
	LeftOut int `json:"left_out,omitempty"`
}

// AfterJSON is the median time to detection, in seconds.
type AfterJSON struct {
	Median float64 `json:"median_s"`
	Low    float64 `json:"low_s"`
	High   float64 `json:"high_s"`
	N      int     `json:"n"`
}

// Summary converts the result to numbers; score is nil for a recording without labels. The
// caller sets Rows and Bad from its reader.
func (r *Result) Summary(score *Score) Summary {
	s := Summary{Rule: r.Rule, Late: r.Late, Twice: r.Twice, Unknown: r.UnknownSignal, Samples: r.Judged, Outliers: r.Outliers, Anomalies: r.Anomalies,
		Accusations: len(r.Accusations), Incidents: len(r.Incidents), Machines: r.Machines, Jobs: len(r.Jobs), From: r.From, To: r.To,
		Days: float64(r.Watched) / (24 * 60 * 60 * 1000)}
	if score == nil {
		return s
	}
	s.Precision, s.Recall, s.Top1 = &score.Precision, &score.Recall, &score.Top1
	s.ByCause, s.LeftOut = score.ByCause, score.LeftOut
	if median, low, high, ok := score.Median(); ok {
		s.After = &AfterJSON{median.Seconds(), low.Seconds(), high.Seconds(), len(score.Found)}
	}
	return s
}
