package study

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// completeHosts replaces a host with a count by that many hosts, and levels of factors that
// end in * by the hosts with that prefix.
func (s *Study) completeHosts() {
	for _, name := range sorted(s.Hosts) {
		h := s.Hosts[name]
		if h.Count < 1 || h.Count > 1000 { // validate reports those
			continue
		}
		delete(s.Hosts, name)
		for i := range h.Count {
			h.Name = name + strconv.Itoa(i+1)
			s.Hosts[h.Name] = h
		}
	}
	for i := range s.Factors {
		f := &s.Factors[i]
		var levels []string
		for _, l := range f.Levels {
			if there := s.hostsLike(l); strings.HasSuffix(l, "*") && len(there) > 0 {
				levels = append(levels, there...)
			} else {
				levels = append(levels, l)
			}
		}
		f.Levels = levels
	}
}

// off are the hosts that are off while a cell runs.
func (s *Study) off(c *Cell) (names []string) {
	for _, name := range s.hostsLike("*") {
		if s.Hosts[name].Power && !slices.ContainsFunc(c.Parts, func(p Part) bool { return p.Host == name }) {
			names = append(names, name)
		}
	}
	return names
}

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

// elsewhere checks a study whose hosts are all others for what is of the lab's own machine only. That
// one may be the host of guests that are the others: then its knobs matter, and it is named.
func (c *checker) elsewhere() {
	const want = "a role on the lab's own machine: it is of that machine only"
	const named = "also local: {} in hosts: knobs are set on the lab's own machine only"
	if c.Observe.Agent != nil {
		c.add("observe.agent", "given", want)
	}
	if len(c.Preconditions.Set) > 0 {
		c.add("preconditions.set", "given", named)
	}
	for _, f := range c.Factors {
		if f.Knob != "" {
			c.add("factors."+f.Name+".knob", strconv.Quote(f.Knob), named)
		}
		if f.Mappings != nil {
			c.add("factors."+f.Name+".mappings", "given", want)
		}
		for i, p := range f.Placements {
			if len(p.CPUs) == 0 && p.Relation != "neutral" {
				c.add(fmt.Sprintf("factors.%s[%d]", f.Name, i), p.Name, "cpus for each role: relations are of the lab's own machine only")
			}
		}
	}
}
