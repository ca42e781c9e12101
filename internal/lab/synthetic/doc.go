// Package synthetic creates records of simulated runs from a model whose truth is known
// (study.Model). With them the analyses and reports of full-size studies are tested for
// bias and coverage. Every record is marked as simulated.
package synthetic
