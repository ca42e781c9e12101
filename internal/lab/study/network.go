package study

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Network is one of a study's own networks, made of network namespaces on the machine
// that runs the lab. All networks are one subnet, connected by uplinks.
type Network struct {
	Name   string        `key:"-" json:"name"`
	Uplink string        `key:"uplink" json:"uplink,omitempty" help:"network that it is connected to by one link, as a machine by its network card"`
	Rate   Rate          `key:"rate" json:"rate,omitempty" help:"maximum rate of the uplink in each direction, e.g. 100Mbit; none: no limit"`
	Queue  time.Duration `key:"queue" json:"queue,omitempty" help:"how long a packet may wait at the uplink before it is dropped (tbf); 50ms"`
	Shaper string        `key:"shaper" json:"shaper,omitempty" oneof:"tbf htb" help:"the kernel's queueing discipline that limits the uplink"`
}

// SetName implements keyed.Named.
func (n *Network) SetName(name string) { n.Name, n.Shaper = name, "tbf" }

// Bandwidth bounds what an environment may send onto its network, as clouds bound an
// instance: the baseline always, the burst while there is credit. The credit is full when
// the environment is created. Sending uses it, and it fills at the baseline rate.
type Bandwidth struct {
	Baseline Rate  `key:"baseline" json:"baseline" help:"rate that it may always send at"`
	Burst    Rate  `key:"burst" json:"burst,omitempty" help:"rate that it may send at while it has credit; none: the baseline"`
	Credit   Bytes `key:"credit" json:"credit,omitempty" help:"size of a full credit, e.g. 150MB"`
}

// mostCredit is the longest time that a credit may take to fill at the baseline: the
// kernel's buckets are 32 bits of 64 ns.
const mostCredit = 270 * time.Second

// BurstTime is how long a full credit lasts for a sender at the full burst rate, while the
// credit fills at the baseline. 0 without a burst.
func (b *Bandwidth) BurstTime() time.Duration {
	if b.Burst <= b.Baseline {
		return 0
	}
	return time.Duration(8 * float64(b.Credit) / float64(b.Burst-b.Baseline) * float64(time.Second))
}

// Rate is the rate of a link in bits/s, in files with a unit ("100Mbit").
type Rate float64

var rates = []struct {
	unit string
	bits float64
}{{"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

// UnmarshalText reads a rate: "100Mbit", "1.5Gbit", also with /s.
func (r *Rate) UnmarshalText(text []byte) error {
	word := strings.TrimSuffix(string(text), "/s")
	for _, u := range rates {
		number, ok := strings.CutSuffix(word, u.unit)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if v := f * u.bits; err == nil && v > 0 && v <= 1e12 && !math.IsNaN(v) {
			*r = Rate(v)
			return nil
		}
		break
	}
	return fmt.Errorf("%q: want a rate with a unit such as 100Mbit", text)
}

// String formats the rate in the largest unit in which it is at least 1.
func (r Rate) String() string {
	for _, u := range rates {
		if float64(r) >= u.bits {
			return strconv.FormatFloat(float64(r)/u.bits, 'g', 12, 64) + u.unit
		}
	}
	return "0bit"
}

// MarshalText writes the format that UnmarshalText reads.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Requests is the control of a load in requests/s, for a role that sends requests to
// another one. Its target is a share of the rate of that role's workload in the base
// case, or MaxRate.
const (
	Requests = "requests"
	MaxRate  = "max"
)

// The built-in workloads of web servers and of their clients; they are not among the
// kernels.
const (
	HTTPServer = "http-server"
	HTTPClient = "http-client"
)

// MayIdle reports whether the part may have nothing to do for long, so that it is not stalled
// when it uses no CPU time: servers, and commands that ask one (sockperf sleeps for 2 s).
func (p *Part) MayIdle() bool {
	w := &p.Workload
	return w.Serves > 0 || p.Asks != "" && len(w.Command) > 0 || slices.Contains([]string{"idle", HTTPServer}, w.Builtin)
}

// Concludes reports whether the workload reports its totals after its time is over,
// shortly after the last answer.
func (w *Workload) Concludes() bool { return w.Builtin == HTTPClient }

// address is the address of the k-th instance of role number i on its study's networks.
func address(i, k int) string { return fmt.Sprintf("10.77.%d.%d/16", i, k+1) }

// connect sets the addresses of the cell's parts, and the addresses of their servers.
func (s *Study) connect(c *Cell) {
	numbers := map[string]int{}
	for i := range s.Roles {
		numbers[s.Roles[i].Name] = i
	}
	for i := range c.Parts {
		p := &c.Parts[i]
		asked := s.Role(s.Role(p.Role).Asks)
		server := find(c.Parts, func(q Part) bool { return asked != nil && q.Role == asked.Name && (q.Index == p.Index || !q.Several) })
		if p.Environment.Network == "" {
			if server != nil {
				p.Asks = server.Host
				if s.Here(p) && s.Here(server) {
					p.Asks = "127.0.0.1"
				}
			}
			continue
		}
		c.Networks = s.Networks
		p.Address = address(numbers[p.Role], p.Index)
		if asked != nil {
			k := p.Index
			if server != nil { // all may ask the only one
				k = server.Index
			}
			p.Asks, _, _ = strings.Cut(address(numbers[asked.Name], k), "/")
		}
	}
}

// servers checks that each client of a cell has a server: all ask the only one, else each the one of its number.
func (c *checker) servers(cell *Cell) {
	count := map[string]int{}
	for i := range cell.Parts {
		count[cell.Parts[i].Role]++
	}
	for i := range cell.Parts {
		p := &cell.Parts[i]
		if asked := c.Role(p.Role).Asks; count[asked] > 1 && p.Index >= count[asked] {
			c.add("roles."+p.Role+".count", count[p.Role], fmt.Sprintf("at most as many as %s, %d, or one %s for all (%s)", asked, count[asked], asked, cell.String()))
			return
		}
	}
}

// networks checks the networks, and the environments and roles that use them.
func (c *checker) networks() {
	for _, name := range sorted(c.Networks) {
		n := c.Networks[name]
		key := "networks." + name
		if _, ok := c.Networks[n.Uplink]; n.Uplink != "" && (!ok || n.Uplink == name) {
			c.add(key+".uplink", strconv.Quote(n.Uplink), "another of "+strings.Join(sorted(c.Networks), ", "))
		}
		if n.Shaper != "tbf" && n.Shaper != "htb" {
			c.add(key+".shaper", strconv.Quote(n.Shaper), "one of tbf htb")
		}
		if n.Rate > 0 && n.Uplink == "" {
			c.add(key+".rate", n.Rate, "also an uplink: the rate is the uplink's")
		}
		// A loop of bridges forwards one packet for ever.
		seen := map[string]bool{}
		for at := name; at != ""; at = c.Networks[at].Uplink {
			if seen[at] {
				c.add(key+".uplink", strconv.Quote(n.Uplink), "no loop of uplinks")
				break
			}
			seen[at] = true
		}
	}
	for _, name := range sorted(c.Environments) {
		e := c.Environments[name]
		if e.Network != "" {
			c.oneOf("environments."+name+".network", e.Network, sorted(c.Networks))
		}
		c.bandwidth("environments."+name, &e)
	}
	for i := range c.Roles {
		r := &c.Roles[i]
		key := "roles." + r.Name
		if r.Asks != "" {
			c.oneOf(key+".asks", r.Asks, c.roleNames())
		}
		if r.Load.Control == Requests {
			for _, v := range c.values(r, key+".load.target", r.Load.Target) {
				var s Share
				if v != MaxRate && (s.UnmarshalText([]byte(v)) != nil || s <= 0) {
					c.add(key+".load.target", strconv.Quote(v), "max, or a percentage of that")
				}
			}
		}
	}
}

func (c *checker) bandwidth(key string, e *Environment) {
	b := e.Bandwidth
	if b == nil {
		return
	}
	key += ".bandwidth"
	if e.Network == "" {
		c.add(key, "given", "also a network: the bandwidth limits what is sent to it")
	}
	if b.Baseline <= 0 {
		c.add(key+".baseline", "not given", "a rate such as 20Mbit")
		return
	}
	if b.Burst != 0 && b.Burst <= b.Baseline {
		c.add(key+".burst", b.Burst, "more than the baseline, "+b.Baseline.String())
	}
	if most := Bytes(float64(b.Baseline) / 8 * mostCredit.Seconds()); (b.Burst != 0) != (b.Credit > 0) || b.Credit > most {
		c.add(key+".credit", b.Credit, "a credit only with a burst: more than 0, at most what the baseline sends in "+mostCredit.String()+", "+most.String())
	}
}
