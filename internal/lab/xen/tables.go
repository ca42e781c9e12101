package xen

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// VCPU is one virtual CPU in xl vcpu-list.
type VCPU struct {
	Number  int
	State   string // r running, b blocked, p offline; none: it waits for a CPU
	Seconds float64
	Hard    string // where it may run: "all", or a list of CPUs
}

// ParseVCPUs reads the lines of xl vcpu-list after the one that begins with "Name".
// Pinning shows here and not in xl list -l.
func ParseVCPUs(r io.Reader) ([]VCPU, error) {
	var all []VCPU
	lines := bufio.NewScanner(r)
	head := false
	for n := 1; lines.Scan(); n++ {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) > 0 && f[0] == "Name":
			head = true
		case !head || len(f) == 0:
		default:
			v, err := parseVCPU(f)
			if err != nil {
				return nil, fmt.Errorf("read xl vcpu-list: line %d: %w", n, err)
			}
			all = append(all, v)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read xl vcpu-list: %w", err)
	}
	if !head {
		return nil, errors.New("read xl vcpu-list: no header line")
	}
	return all, nil
}

func parseVCPU(f []string) (v VCPU, err error) {
	if len(f) < 9 {
		return v, fmt.Errorf("%d columns, want 9", len(f))
	}
	if f[7] != "/" {
		return v, fmt.Errorf("affinity %q: want HARD / SOFT", strings.Join(f[6:], " "))
	}
	v = VCPU{State: strings.Trim(f[4], "-"), Hard: f[6]}
	if v.Number, err = strconv.Atoi(f[2]); err == nil && f[5] != "-" {
		v.Seconds, err = strconv.ParseFloat(f[5], 64)
	}
	return v, err
}

// Guest is a domain in xl list -l.
type Guest struct {
	ID   int
	Name string
}

// ParseList reads xl list -l. Of a guest's two ids the outer one is right.
func ParseList(r io.Reader) ([]Guest, error) {
	var raw []struct {
		ID     int `json:"domid"`
		Config struct {
			Create struct{ Name string } `json:"c_info"`
		}
	}
	if err := json.NewDecoder(r).Decode(&raw); err != nil {
		return nil, fmt.Errorf("read xl list: %w", err)
	}
	all := make([]Guest, 0, len(raw))
	for _, d := range raw {
		all = append(all, Guest{d.ID, d.Config.Create.Name})
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
