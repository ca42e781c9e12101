package server

import "sync"

// memory is a budget of bytes that all callers share. One caller gets at most half of it.
type memory struct {
	most int64

	mu   sync.Mutex
	used int64
	by   map[string]int64
}

func newMemory(most int64) *memory { return &memory{most: most, by: map[string]int64{}} }

// take reserves n bytes for a caller if there is room.
func (m *memory) take(caller string, n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used+n > m.most || m.by[caller]+n > m.most/2 {
		return false
	}
	m.used += n
	m.by[caller] += n
	return true
}

// give returns n bytes.
func (m *memory) give(caller string, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= n
	if m.by[caller] -= n; m.by[caller] == 0 {
		delete(m.by, caller)
	}
}

func (m *memory) held() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}
