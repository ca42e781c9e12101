package replaycmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/replay"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/format/trace/recording"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/report"
)

// replayer plays recordings according to its flags, any number of times.
type replayer struct {
	app     *commands
	flags   *replayFlags
	files   []string
	changed func(flag string) bool

	columns, innocentsColumns *recording.Columns // nil: not given
	innocents                 []*replay.Innocents
}

// load reads the files named by flags, except the recordings themselves.
func (p *replayer) load(ctx context.Context) error {
	f := p.flags
	err := keeps(slices.Concat(p.files, f.innocents), f.save, f.out)
	if err != nil {
		return err
	}
	if f.columns != "" {
		if p.columns, err = recording.LoadColumns(f.columns); err != nil {
			return columnsError(err)
		}
	}
	if f.innocentsColumns != "" {
		if p.innocentsColumns, err = recording.LoadColumns(f.innocentsColumns); err != nil {
			return columnsError(err)
		}
	}
	if f.innocentsTasks < 1 {
		return fmt.Errorf("--innocents-tasks %d: want 1 or more", f.innocentsTasks)
	}
	for i, name := range f.innocents {
		if name == "-" {
			return app.Usage(errors.New("--innocents reads its recording twice, and standard input can be read only once"), "write it to a file first")
		}
		in, err := replay.LoadInnocents(i+1, f.innocentsTasks, func(take func(*sample.Sample)) error {
			r, err := p.openInnocents(name)
			if err != nil {
				return err
			}
			return readAll(ctx, r, r.Close, take)
		})
		if err != nil {
			return fmt.Errorf("--innocents %s: %w", name, err)
		}
		p.innocents = append(p.innocents, in)
	}
	return nil
}

// keeps refuses to write to a file that is read: it would be empty before its first sample is read.
func keeps(read []string, write ...string) error {
	for _, name := range write {
		to, err := os.Stat(name)
		if err != nil || !to.Mode().IsRegular() {
			continue
		}
		for _, from := range read {
			if st, err := os.Stat(from); err == nil && os.SameFile(st, to) {
				return app.Usage(fmt.Errorf("%s is read: it would be overwritten", name), "write to another file")
			}
		}
	}
	return nil
}

// openInnocents opens a recording. A CSV that is not a trace is read with the columns
// given for innocents.
func (p *replayer) openInnocents(name string) (*recording.Recording, error) {
	r, err := recording.Open(name, recording.Options{})
	if errors.Is(err, trace.ErrHeader) && p.innocentsColumns != nil {
		return recording.Open(name, recording.Options{Columns: p.innocentsColumns})
	}
	return r, err
}

func (p *replayer) reel(what string) *fileSource {
	r := &fileSource{now: p.app.Now, progress: p.app.Progress(p.app.Err), files: p.files, options: recording.Options{Columns: p.columns}, what: what}
	if len(p.innocents) > 0 {
		r.splice = replay.NewSplicer(p.flags.step, p.innocents...)
	}
	return r
}

// play plays the recordings with a rule.
func (p *replayer) play(ctx context.Context, rule string) (*report.Replay, error) {
	f := p.flags
	o, err := f.options(rule, p.changed)
	if err != nil {
		return nil, err
	}
	if f.specs == "whole" && slices.Contains(p.files, "-") {
		return nil, app.Usage(errors.New("--specs whole reads the recording twice, and standard input can be read only once"), "write it to a file first")
	}
	if f.specs == "whole" {
		learner := replay.NewLearner(&o)
		film := p.reel("learning")
		if err := readAll(ctx, film, film.close, learner.Add); err != nil {
			return nil, err
		}
		o.Specs = learner.Specs(o.Spec.MinSamples)
	}
	o.Costs = f.out != ""
	film := p.reel("replaying")
	if f.save != "" {
		if film.save, err = createTrace(f.save); err != nil {
			return nil, err
		}
	}
	result, err := replay.Run(ctx, film, o, f.workers)
	if err := errors.Join(err, film.close()); err != nil {
		return nil, err
	}
	if err := film.save.close(film.labels, film.left, film.labelled); err != nil {
		return nil, err
	}
	r := &report.Replay{Result: result}
	if film.labelled {
		score := replay.Judge(film.labels, film.left, result.Accusations)
		r.Score = &score
		if film.bare > 0 {
			film.notes = append(film.notes, fmt.Sprintf("%d of %d files have no labels: what is accused there counts as wrong", film.bare, len(p.files)))
		}
	}
	r.Summary = result.Summary(r.Score)
	r.Summary.Rows, r.Summary.Bad = film.rows, film.bad
	r.Notes = append(film.notes, p.innocentsNotes(film.splice)...)
	note := func(when bool, format string, of ...any) {
		if when {
			r.Notes = append(r.Notes, fmt.Sprintf(format, of...))
		}
	}
	note(result.Late > 0, "rows skipped, not in time order: %d; sort the recording", result.Late)
	note(result.Twice > 0, "rows skipped, of a task that has another at the same time: %d; the recording has rows twice or lacks the machine, or a task was started again within an interval", result.Twice)
	note(result.UnknownSignal > 0, "rows skipped, unknown signal: %d", result.UnknownSignal)
	const apart = " of --step %s apart: the rule's windows are for that time between two samples"
	note(2*result.Near > result.Gaps, "most samples of a task are less than half"+apart, f.step)
	note(2*result.Far > result.Gaps, "most samples of a task are more than twice"+apart, f.step)
	none := result.Samples > 0 && result.Judged == 0
	note(result.Samples == 0, "no sample counts: none has a cost in its signal's range (--sane), of a task that is as active as the signal requires (--least-cpu)")
	note(none && o.Specs != nil, "no sample was compared with a spec: no job has %d samples (--least-samples)", f.leastSamples)
	note(none && o.Specs == nil, "no sample was compared with a spec: specs learnt during the replay need %d samples per task (--least-samples); --specs whole learns them from the whole recording first", f.leastSamples)
	return r, nil
}

// innocentsNotes describes the innocents added to the recording's tasks.
func (p *replayer) innocentsNotes(s *replay.Splicer) (notes []string) {
	for i, in := range p.innocents {
		note := fmt.Sprintf("%d innocents of %s on each machine, %.3g CPU-s/s in total", in.Tasks(), filepath.Base(p.flags.innocents[i]), in.Usage())
		if times := s.Longest().Seconds() / in.Length().Seconds(); times > 1 {
			note += fmt.Sprintf("; it is repeated, up to %.1f times", times)
		}
		notes = append(notes, note)
	}
	return notes
}
