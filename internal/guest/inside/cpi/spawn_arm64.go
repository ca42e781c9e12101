package cpi

// perTurn is how many instructions a turn of spawn's loop takes.
const perTurn = 2

// spawn forks, and the child executes perTurn × turns instructions in a loop,
// six others, and exits. It never enters Go's runtime, whose threads and
// signals would execute some ten thousand more a second. pid is negative for
// an error number.
//
//go:noescape
func spawn(turns uint64) (pid int)
