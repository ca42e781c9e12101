package host

// Write is one change of one file: Old is what it held, New what it shall
// hold, both trimmed. File is absolute inside the root.
type Write struct {
	File string `json:"file"`
	Old  string `json:"old"`
	New  string `json:"new"`
}
