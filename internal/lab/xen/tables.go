package xen

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Usage is one domain in one round of xentop -b. Its CPU is always 0 in the first
// round, which has no predecessor: request at least two rounds.
type Usage struct {
	Round    int // from 0
	Name     string
	Seconds  float64 // CPU time since it was made, whole seconds
	CPU      float64 // of one CPU, 0..VCPUs
	VCPUs    int
	TxKB     float64 // sent by the guest, since it was made
	RxKB     float64
	MemoryKB int64
}

// ParseTop reads the tables of xentop -b, with or without -f -n -x -v.
func ParseTop(r io.Reader) ([]Usage, error) {
	var all []Usage
	round := -1
	var columns map[string]int
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) == 0:
		case f[0] == "NAME":
			round++
			columns = map[string]int{}
			for i, name := range f {
				columns[name] = i
			}
		case columns == nil:
			return nil, fmt.Errorf("read xentop: line %d: no header line before it", n)
		case strings.HasPrefix(f[0], "VCPUs(") || strings.HasPrefix(f[0], "Net") || f[0] == "VBD":
		default:
			u := Usage{Round: round, Name: f[0]}
			// Without a maximum of memory the column is the two words "no limit".
			if i := strings.Index(lines.Text(), "no limit"); i >= 0 {
				f = strings.Fields(strings.Replace(lines.Text(), "no limit", "no-limit", 1))
			}
			var err error
			number := func(column string) (v float64) {
				i, ok := columns[column]
				if !ok || i >= len(f) {
					err = fmt.Errorf("no %s", column)
					return 0
				}
				v, bad := strconv.ParseFloat(f[i], 64)
				if bad != nil {
					err = fmt.Errorf("%s: %q", column, f[i])
				}
				return v
			}
			u.Seconds, u.CPU = number("CPU(sec)"), number("CPU(%)")/100
			u.VCPUs, u.MemoryKB = int(number("VCPUS")), int64(number("MEM(k)"))
			u.TxKB, u.RxKB = number("NETTX(k)"), number("NETRX(k)")
			if err != nil {
				return nil, fmt.Errorf("read xentop: line %d: %w", n, err)
			}
			all = append(all, u)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read xentop: %w", err)
	}
	return all, nil
}

// VCPU is one virtual CPU in xl vcpu-list.
type VCPU struct {
	Name    string
	Domain  int
	Number  int
	CPU     int    // physical; -1 if it is on none
	State   string // r running, b blocked, p offline; none: it waits for a CPU
	Seconds float64
	Hard    string // where it may run: "all", or a list of CPUs
	Soft    string // where it should
}

// ParseVCPUs reads xl vcpu-list. Pinning shows here and not in xl list -l.
func ParseVCPUs(r io.Reader) ([]VCPU, error) {
	var all []VCPU
	err := table(r, "xl vcpu-list", 9, func(f []string) error {
		v := VCPU{Name: f[0], CPU: -1, State: strings.Trim(f[4], "-"), Hard: f[6], Soft: strings.Join(f[8:], " ")}
		if f[7] != "/" {
			return fmt.Errorf("affinity %q: want HARD / SOFT", strings.Join(f[6:], " "))
		}
		var err error
		for i, to := range map[int]*int{1: &v.Domain, 2: &v.Number, 3: &v.CPU} {
			if f[i] == "-" {
				continue
			}
			if *to, err = strconv.Atoi(f[i]); err != nil {
				return err
			}
		}
		if f[5] != "-" {
			v.Seconds, err = strconv.ParseFloat(f[5], 64)
		}
		all = append(all, v)
		return err
	})
	return all, err
}

// Share is a domain's weight and cap, by xl sched-credit or sched-credit2.
type Share struct {
	Name        string
	Domain      int
	Weight, Cap int // Cap in per cent of one CPU; 0: none
}

// ParseShares reads xl sched-credit and xl sched-credit2.
func ParseShares(r io.Reader) ([]Share, error) {
	var all []Share
	err := table(r, "xl sched-credit", 4, func(f []string) (err error) {
		s := Share{Name: f[0]}
		for i, to := range []*int{&s.Domain, &s.Weight, &s.Cap} {
			if *to, err = strconv.Atoi(f[i+1]); err != nil {
				return err
			}
		}
		all = append(all, s)
		return nil
	})
	return all, err
}

// table reads lines with at least the given number of fields, after the line that
// begins with "Name".
func table(r io.Reader, what string, fields int, row func([]string) error) error {
	lines := bufio.NewScanner(r)
	head := false
	for n := 1; lines.Scan(); n++ {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) > 0 && f[0] == "Name":
			head = true
		case !head || len(f) == 0:
		case len(f) < fields:
			return fmt.Errorf("read %s: line %d: %d columns, want %d", what, n, len(f), fields)
		default:
			if err := row(f); err != nil {
				return fmt.Errorf("read %s: line %d: %w", what, n, err)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	if !head {
		return fmt.Errorf("read %s: no header line", what)
	}
	return nil
}

// Guest is a domain in xl list -l.
type Guest struct {
	ID       int
	Name     string
	Type     string // pv, pvh, hvm
	VCPUs    int    // 0: not listed, as for the first domain
	MemoryKB int64
}

// ParseList reads xl list -l. Of a guest's two ids the outer one is right.
func ParseList(r io.Reader) ([]Guest, error) {
	var raw []struct {
		ID     int `json:"domid"`
		Config struct {
			Create struct {
				Type, Name string
			} `json:"c_info"`
			Build struct {
				VCPUs  int   `json:"max_vcpus"`
				Memory int64 `json:"max_memkb"`
			} `json:"b_info"`
		}
	}
	if err := json.NewDecoder(r).Decode(&raw); err != nil {
		return nil, fmt.Errorf("read xl list: %w", err)
	}
	all := make([]Guest, 0, len(raw))
	for _, d := range raw {
		all = append(all, Guest{d.ID, d.Config.Create.Name, d.Config.Create.Type, d.Config.Build.VCPUs, d.Config.Build.Memory})
	}
	return all, nil
}

// ParseHertz reads cpu_mhz from xl info: the rate of a trace's time stamps.
func ParseHertz(r io.Reader) (float64, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(key) == "cpu_mhz" {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil || v <= 0 {
				return 0, fmt.Errorf("read xl info: cpu_mhz: %q", value)
			}
			return v * 1e6, nil
		}
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("read xl info: %w", err)
	}
	return 0, fmt.Errorf("read xl info: no cpu_mhz")
}
