package host

// Capability is one thing that quell can use or must do without.
type Capability struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Detail says what is there, Reason why it is not or not fully, Remedy
	// what a person can do about it; each may be empty.
	Detail string `json:"detail,omitempty"`
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}
