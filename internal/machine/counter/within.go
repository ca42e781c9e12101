package counter

import "context"

// within returns the result of f, which runs in a goroutine of its own, or false if the
// context ends first. A call to the kernel cannot be interrupted, so f may then still run, with
// its thread, for as long as the kernel waits; its result goes to drop.
func within[T any](ctx context.Context, f func() T, drop func(T)) (T, bool) {
	result := make(chan T)
	go func() {
		v := f()
		select {
		case result <- v:
		case <-ctx.Done():
			drop(v)
		}
	}()
	select {
	case v := <-result:
		return v, true
	case <-ctx.Done():
		var none T
		return none, false
	}
}
