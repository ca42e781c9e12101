package quality

import (
	"fmt"
	"io"
	"strings"
)

// Text writes the results as Markdown tables: all rules over all cases, then each rule by
// class.
func Text(w io.Writer, results []Result) error {
	var b strings.Builder
	b.WriteString("| rule | cases | precision | recall | top-1 | median time | false per 1,000 machine-days | trials, right |\n|---|---|---|---|---|---|---|---|\n")
	for i := range results {
		r := &results[i]
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s | %s | %.0f min | %s | %d, %d |\n", r.Rule, r.All.Cases, share(r.All.Precision()), share(r.All.Recall()),
			share(r.All.Top1()), r.All.Median().Minutes(), perDay(&r.Everyday), r.All.Trials, r.All.TrialsRight)
	}
	for i := range results {
		r := &results[i]
		fmt.Fprintf(&b, "\n`%s` by class:\n\n| class | cases | victims | named | accusations | right | first right | trials | right |\n|---|---|---|---|---|---|---|---|---|\n", r.Rule)
		for _, c := range r.Classes {
			fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d of %d | %d | %d |\n", c.Class, c.Cases, c.Victims, c.Named, c.Accusations, c.Right, c.FirstRight, c.First, c.Trials, c.TrialsRight)
		}
	}
	b.WriteString("\n| rule | CPU-h taken by caps | of innocents | victims under caps | below threshold in most minutes | minutes | below threshold |\n|---|---|---|---|---|---|---|\n")
	for i := range results {
		r := &results[i].All.Relief
		fmt.Fprintf(&b, "| `%s` | %.1f | %.1f | %d | %d | %d | %d |\n", results[i].Rule, r.Taken/3600, r.TakenOfOthers/3600, r.Victims, r.Relieved, r.Held, r.Well)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func share(x, low float64) string { return fmt.Sprintf("%.3f (≥ %.3f)", x, low) }

func perDay(c *Count) string {
	if c.Minutes == 0 {
		return "–"
	}
	rate, high := c.FalsePerThousandDays()
	return fmt.Sprintf("%.1f (≤ %.1f) in %d", rate, high, c.Minutes/(24*60))
}
