package cpi

// perTurn is the number of instructions in one pass of spawn's loop.
const perTurn = 2

// spawn forks. The child executes perTurn × turns instructions in a loop and six others,
// and exits. It never enters Go's runtime, whose threads and signals would execute about
// ten thousand more a second. A negative pid is an error number.
//
//go:noescape
func spawn(turns uint64) (pid int)
