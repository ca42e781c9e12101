package study

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// hostsLike are the hosts that a role's field names: "nb*" matches all names with that
// prefix, nb2 before nb10. Any other name is the host itself, if it exists.
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

// hostOf is the host of a role's k-th part: the k-th of the hosts that match "nb*",
// otherwise the only one.
func (s *Study) hostOf(name string, k int) string {
	if there := s.hostsLike(name); strings.HasSuffix(name, "*") && k < len(there) {
		return there[k]
	}
	return name
}

// hosts checks the hosts that a role names; most is the largest number of instances of
// the role.
func (c *checker) hosts(r *Role, key string, most int) {
	for _, v := range c.values(r, key, r.Host) {
		there := c.hostsLike(v)
		switch many := strings.HasSuffix(v, "*"); {
		case many && len(there) < most:
			c.add(key, strconv.Quote(v), fmt.Sprintf("a host with this prefix for each instance of the role: %d, there are %d", most, len(there)))
		case !many && len(there) == 0:
			c.add(key, strconv.Quote(v), "one of "+strings.Join(sorted(c.Hosts), ", "))
		}
	}
}
