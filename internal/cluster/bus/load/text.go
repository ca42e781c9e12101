package load

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
)

// Text writes the result in human-readable form.
func (r *Result) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	line("sent", "by %s machines × %d tasks, a batch each %s, for %s", thousands(float64(r.Machines)), r.Tasks, seconds(r.Period), seconds(r.Seconds))
	line("acknowledged", "%s samples, %s/s; %s/s in the slowest 10 s; %.1f B a sample on the wire", thousands(float64(r.Acknowledged)), thousands(r.Rate), thousands(r.Slowest), r.WireBytes)
	line("", "after %s (median), %s (99 %%); %s deliveries, %s were sent again", seconds(r.AckP50), seconds(r.AckP99), thousands(float64(r.Deliveries)), thousands(float64(r.Resends)))
	if r.Left > 0 {
		line("", "%s batches were due and not sent: they are in agents' spools", thousands(float64(r.Left)))
	}
	if r.AgainWhy != "" {
		line("", "reason: %s", r.AgainWhy)
	}
	if s := r.Server; s != nil {
		line("committed", "%s samples; %s/s during the run; all of them %s after the last batch", thousands(s.Committed), thousands(s.CommitRate), seconds(s.SettleAfter))
		line("stored", "%.1f B a sample, in %s segments; %s commits, %s segments merged", s.StoredBytes, thousands(s.Segments), thousands(s.Commits), thousands(s.Merged))
		line("server", "%.2f CPU-s/s, %.2f µs a sample; at most %s MB", s.CPU, s.PerSample, thousands(s.PeakRSS/1e6))
		line("waiting", "at most %.1f MB of messages and %s; %s deliveries found no room", s.PeakWaiting/1e6, seconds(s.PeakOldest), thousands(s.Refused))
		if s.Duplicates > 0 || s.Rejected > 0 {
			line("", "%s batches came twice, %s samples were rejected", thousands(s.Duplicates), thousands(s.Rejected))
		}
	}
	line("load", "%.2f CPU-s/s", r.PlayerCPU)
	return t.Flush()
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}

// thousands formats a whole number with commas.
func thousands(v float64) string {
	text := strconv.FormatFloat(v, 'f', 0, 64)
	sign := ""
	if text[0] == '-' {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}

// Text writes the progress on one line.
func (p *Progress) Text(w io.Writer) error {
	if p.Elapsed == 0 {
		_, err := fmt.Fprintf(w, "%d machines are connected\n", p.Connected)
		return err
	}
	_, err := fmt.Fprintf(w, "%6s  %s/s acknowledged, %s in total, %s wait; server: %s committed, %s MB, %s MB wait, for %s\n", p.Elapsed.Round(time.Second),
		thousands(p.Rate), thousands(float64(p.Acknowledged)), thousands(p.Waiting), thousands(p.Usage.committed()), thousands(p.Usage.RSS/1e6),
		thousands(p.Usage.Waiting/1e6), seconds(p.Usage.Oldest))
	return err
}
