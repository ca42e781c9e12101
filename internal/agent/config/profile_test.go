package config

import (
	"strings"
	"testing"
	"time"
)

func TestProfileLinks(t *testing.T) {
	from := time.UnixMilli(1_700_000_000_000)
	known := map[string]string{"task": "shop/web-0/app & co", "job": "shop/web", "pod": "web-0", "namespace": "shop"}
	for _, c := range []struct{ name, template, want string }{
		{"none", "", ""},
		{"Parca", `https://parca.example/?expression_a=process_cpu%7Bpod%3D%22{pod}%22%2Cnamespace%3D%22{namespace}%22%7D&from_a={from}&to_a={to}`,
			`https://parca.example/?expression_a=process_cpu%7Bpod%3D%22web-0%22%2Cnamespace%3D%22shop%22%7D&from_a=1700000000000&to_a=1700000060000`},
		{"Pixie", "https://px.example/live?pod={namespace}%2F{pod}&start_time={from_time}", "https://px.example/live?pod=shop%2Fweb-0&start_time=2023-11-14T22%3A13%3A20Z"},
		{"a value is escaped", "http://p.example/?q={task}", "http://p.example/?q=shop%2Fweb-0%2Fapp+%26+co"},
		{"what is not known", "https://p.example/?q={container}", ""},
	} {
		r := Rotation{Profile: c.template}
		if wrong := checkProfile(c.template); wrong != "" {
			t.Errorf("%s: %s", c.name, wrong)
		}
		if got := r.ProfileOf(from, from.Add(time.Minute), known); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	for template, want := range map[string]string{"javascript:alert({pod})": "https://", "{pod}": "https://", "https://": "https://", "https://p.example/{nodes}": "{nodes} is unknown"} {
		if got := checkProfile(template); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", template, got, want)
		}
	}
}
