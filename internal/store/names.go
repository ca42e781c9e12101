package store

import (
	"cmp"
	"slices"
	"strings"
)

// names holds each distinct text once and numbers it. Ranks put the numbers in
// the texts' order, so that rows are sorted by comparing integers.
type names struct {
	id    map[string]uint32
	text  []string
	ranks []uint32 // by id; valid for the first len(ranks) texts only while that is all of them
}

// maxNames bounds what is remembered from one flush to the next.
const maxNames = 4 << 20

func newNames() *names { return &names{id: map[string]uint32{}} }

func (n *names) of(s string) uint32 {
	id, ok := n.id[s]
	if !ok {
		s = strings.Clone(s) // it may be a part of a whole message
		id = uint32(len(n.text))
		n.id[s] = id
		n.text = append(n.text, s)
	}
	return id
}

// rank returns each text's place in byte order.
func (n *names) rank() []uint32 {
	if len(n.ranks) == len(n.text) {
		return n.ranks
	}
	ids := make([]uint32, len(n.text))
	for i := range ids {
		ids[i] = uint32(i)
	}
	slices.SortFunc(ids, func(a, b uint32) int { return cmp.Compare(n.text[a], n.text[b]) })
	n.ranks = make([]uint32, len(ids))
	for place, id := range ids {
		n.ranks[id] = uint32(place)
	}
	return n.ranks
}
