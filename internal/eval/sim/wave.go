package sim

import "math/rand/v2"

// wave is a task's demand, minute by minute: one level while it is on, and another while it
// is off.
type wave struct {
	kind      waveKind
	high, low float64
	on        bool
	left      int // minutes until it changes
	meanOn    float64
	meanOff   float64
	from      int // minute: off before it
}

type waveKind uint8

const (
	steady waveKind = iota // always on
	bursts                 // on and off for random times
	onset                  // on from a moment on
	cron                   // on for meanOn minutes in each meanOn+meanOff
	led                    // on is set from outside, by advanceClock
)

// next advances to the given minute and returns the demand.
func (w *wave) next(minute int, rng *rand.Rand) float64 {
	switch w.kind {
	case steady:
		w.on = true
	case onset:
		w.on = minute >= w.from
	case bursts:
		if minute < w.from {
			w.on, w.left = false, 0
			break
		}
		if w.left--; w.left <= 0 {
			w.on = !w.on
			mean := w.meanOff
			if w.on {
				mean = w.meanOn
			}
			w.left = max(2, int(mean*(0.5+rng.Float64())))
		}
	case cron:
		period := int(w.meanOn + w.meanOff)
		w.on = minute >= w.from && (minute-w.from)%max(period, 1) < int(w.meanOn)
	}
	if w.on {
		return w.high
	}
	return w.low
}
