// Package render makes what people read of a study out of what analyses say:
// one HTML file that needs no network (plots are SVG, drawn here), Markdown,
// and tables of every number as CSV and JSON lines. It draws analyse.Results
// and computes no statistics of its own: a plot, its table and the CSV row show
// the same number with the same interval.
//
// A report's parts are the same in HTML and Markdown, because both are written
// from one page: sections of exhibits, each a table with the plots that it is
// drawn in.
//
// It also holds results against expectations (a paper's table) and against
// another folder's, and packs a folder into one file.
package render
