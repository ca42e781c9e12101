// Package render creates the human-readable output of a study from the results of the
// analyses: one HTML file that needs no network (plots are SVG, drawn here), Markdown,
// and tables of every number as CSV and JSON lines. It draws analyse.Results and computes
// no statistics of its own: a plot, its table and the CSV row show the same number with
// the same interval.
//
// A report has the same parts in HTML and in Markdown, because package page writes both:
// sections of exhibits, each a table with its plots.
//
// It also compares results with expectations (a paper's table) and with another folder's
// results, and packs a folder into one file.
package render
