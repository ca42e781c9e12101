package render

// Check is one expectation held against the results.
type Check struct{}

func (r *Report) checks() section { return section{} }
