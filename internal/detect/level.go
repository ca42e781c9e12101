package detect

// level is what the newest intervals of a task cost. A task that is a little worse than
// usual for long has few outliers, or none: on the recordings of design 0009 harm of a
// tenth to a quarter is 1 to 2 σ. So by switch Evidence, where the mean of the newest
// intervals is high enough over the spec's, the threshold is half-way between the two.
// Outliers count as the threshold, so that a few do not make a level, and where they
// are half of it there is nothing to lower. A wait in a queue is left as it is: it goes
// up and down with all that runs, and who was served meanwhile is accounted.
type level struct {
	costs [levelOf]float32
	n     int // taken in, since the task began
}

const (
	// levelOf is how many intervals are a level.
	levelOf = 10
	// mildSigmas and mildShare are by how much a level must be over the spec's mean: in
	// σ of the spec, and as a share of the mean. Chosen on the recordings of design
	// 0009 with innocents: of 121 mild labels 1.2 σ finds 116, 1.3 114, 1.4 113; and
	// on the simulator's tuning half, where recall with trials is 0.946, 0.956, 0.957.
	mildSigmas = 1.3
	mildShare  = 0.05
)

// take takes in an interval's cost, and returns the threshold for it, given the task's
// spec and its usual threshold: a lower one where the task is mildly worse for long.
func (l *level) take(cost, mean, sd, usual float64) (limit float64, mild bool) {
	l.costs[l.n%levelOf] = float32(cost)
	if l.n++; l.n < levelOf {
		return usual, false
	}
	sum, outliers := 0.0, 0
	for _, c := range l.costs {
		if float64(c) > usual {
			outliers++
		}
		sum += min(float64(c), usual)
	}
	up := sum/levelOf - mean
	if outliers > levelOf/2 || up <= mildSigmas*sd || up <= mildShare*mean || mean+up/2 >= usual {
		return usual, false
	}
	return mean + up/2, true
}
