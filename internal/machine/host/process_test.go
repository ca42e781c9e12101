package host

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"
)

func TestParseProcessStat(t *testing.T) {
	const systemd = "1 (systemd) S 0 1 1 0 -1 4194560 9 0 4 0 5 " +
		"1 0 0 20 0 1 0 1331 2547712 1088 18446744073709551615 94200 95300 140731404128800 0 0 0 0 4096 65538 0 0 0 17 3 0 0 0 7 0 " +
		"1 2 3 140731404132000 140731404132344 140731404132345 140731404136427 0\n"
	const short = "7 (a) b) (c) T 1 7 7 0 -1 4194564 1 2 3 4 150 50 0 0 20 0 1 0 777 1 2"
	for text, want := range map[string]ProcessStat{
		systemd:     {Name: "systemd", State: 'S', Flags: 4194560, Used: 60 * time.Millisecond, Start: 1331, CPU: 3, Guest: 70 * time.Millisecond, EnvStart: 140731404132345},
		short:       {Name: "a) b) (c", State: 'T', Flags: 4194564, Used: 2 * time.Second, Start: 777},
		"7 (a) S 1": {Name: "a", State: 'S'},
		strings.Replace(systemd, "20 0 1 0 1331", "30 10 1 0 1331", 1): {Name: "systemd", State: 'S', Flags: 4194560, Used: 60 * time.Millisecond, Start: 1331, Nice: 10, CPU: 3,
			Guest: 70 * time.Millisecond, EnvStart: 140731404132345},
		strings.Replace(systemd, "17 3 0 0 0 7", "17 3 0 5 0 7", 1): {Name: "systemd", State: 'S', Flags: 4194560, Used: 60 * time.Millisecond, Start: 1331, Policy: 5, CPU: 3,
			Guest: 70 * time.Millisecond, EnvStart: 140731404132345},
	} {
		if got, err := parseProcessStat([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, bad := range []string{"", "7 (a", ")(", "7 (a)", strings.Replace(short, "150", "x", 1), strings.Replace(short, "777", "-1", 1),
		strings.Replace(systemd, "20 0 1 0 1331", "20 x 1 0 1331", 1)} {
		if got, err := parseProcessStat([]byte(bad)); err == nil || got != (ProcessStat{}) {
			t.Errorf("%q: %+v, %v", bad, got, err)
		}
	}
	// The state is that of the first thread, which need not be the one that reads: it may wait for a page.
	if own, err := ReadProcessStat("/proc/self/stat"); err != nil || own.Start == 0 || own.EnvStart == 0 || !strings.Contains("RSD", string(own.State)) {
		t.Errorf("our own: %+v, %v", own, err)
	}
	if _, err := ReadProcessStat("/proc/2147483647/stat"); !os.IsNotExist(err) {
		t.Errorf("no process: %v", err)
	}
}

func FuzzParseProcessStat(f *testing.F) {
	f.Add([]byte("1 (a b) c) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 0 0"))
	f.Add([]byte("1 (a"))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseProcessStat(text)
		if err != nil && s != (ProcessStat{}) || s.Used < 0 || s.Guest < 0 {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

func TestParseSchedstat(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Schedstat
		ok   bool
	}{
		{"1077268 28402 3\n", Schedstat{1077268, 28402, 3}, true},
		{"0 0 0\n", Schedstat{}, true},
		{"18446744073709551615 1 2", Schedstat{math.MaxUint64, 1, 2}, true},
		{"18446744073709551616 1 2", Schedstat{}, false},
		{"", Schedstat{}, false},
		{"1 2", Schedstat{}, false},
		{"1 2 3 4", Schedstat{}, false},
		{"1 -2 3", Schedstat{}, false},
	} {
		got, err := parseSchedstat(tt.text)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("%q: %v, %v; want %v, ok %v", tt.text, got, err, tt.want, tt.ok)
		}
	}
}

func FuzzParseSchedstat(f *testing.F) {
	f.Add("1077268 28402 3\n")
	f.Add("0 0")
	f.Fuzz(func(t *testing.T, text string) {
		st, err := parseSchedstat(text)
		if err != nil {
			return
		}
		again, err := parseSchedstat(fmt.Sprintln(st.Run, st.Wait, st.Slices))
		if err != nil || again != st {
			t.Errorf("%q reads as %v, which reads as %v, %v", text, st, again, err)
		}
	})
}
