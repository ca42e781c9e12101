// Package logbook keeps the agent's log of incidents: it appends to it, rotates it, and
// finds incidents in it without reading all of it.
//
// A line of the log is a complete incident.Record as JSON. It is written again at each
// change, so the last line of an ID is valid. Rotated files are Name.1 (the newest),
// Name.2 and so on; incidents in deleted files are dropped. The index in memory takes
// about 200 bytes per incident and has the position of its last line.
package logbook
