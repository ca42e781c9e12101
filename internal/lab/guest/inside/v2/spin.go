//go:build inguest && (amd64 || arm64)

package v2

// spin forks, and the child runs an empty loop until it is killed. It never enters Go's
// runtime, so it is one thread that is always runnable. A negative pid is an error
// number.
//
//go:noescape
func spin() (pid int)
