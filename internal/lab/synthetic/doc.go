// Package synthetic makes records of runs that never happened, from a model
// whose truth is known (study.Truth), so that everything behind the records,
// analyses and reports of full-size studies, is tested for bias and coverage.
// Every record says that it is simulated.
package synthetic
