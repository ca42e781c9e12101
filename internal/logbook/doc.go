// Package logbook keeps the agent's log of incidents: appends to it, rotates
// it, and finds in it again without reading it whole.
//
// A line of the log is a whole incident.Record as JSON. It is written again at
// each change, so the last line of an ID counts. Rotated files are Name.1 (the
// newest), Name.2 and so on; what is rotated away is forgotten. In memory there
// is an entry of about 200 bytes per incident, which says where its last line is.
package logbook
