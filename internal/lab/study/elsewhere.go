package study

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// hostsLike are the hosts that a role's field names: "nb*" names all that begin
// so, nb2 before nb10. Others name themselves, if they are there.
func (s *Study) hostsLike(name string) []string {
	prefix, many := strings.CutSuffix(name, "*")
	if !many {
		if _, ok := s.Hosts[name]; !ok {
			return nil
		}
		return []string{name}
	}
	names := slices.DeleteFunc(sorted(s.Hosts), func(n string) bool { return !strings.HasPrefix(n, prefix) })
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	return names
}

// hostOf is where the k-th of a role's parts is: on the k-th of the hosts that
// "nb*" names, on the only one else.
func (s *Study) hostOf(name string, k int) string {
	if there := s.hostsLike(name); strings.HasSuffix(name, "*") && k < len(there) {
		return there[k]
	}
	return name
}

// hosts checks what a role's host names; most is how many of the role there are
// at most.
func (c *checker) hosts(r *Role, key string, most int) {
	for _, v := range c.values(r, key, r.Host) {
		there := c.hostsLike(v)
		switch many := strings.HasSuffix(v, "*"); {
		case many && len(there) < most:
			c.add(key, strconv.Quote(v), fmt.Sprintf("a host of such a name for each of the role: %d, there are %d", most, len(there)))
		case !many && len(there) == 0:
			c.add(key, strconv.Quote(v), "one of "+strings.Join(sorted(c.Hosts), ", "))
		}
	}
}
