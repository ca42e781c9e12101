package config

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// profileNames are the placeholders of Rotation.Profile: what is known of any task, and
// labels.
var profileNames = []string{"task", "job", "machine", "from", "to", "from_time", "to_time", "namespace", "workload", "pod", "container", "unit", "vm"}

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

// checkProfile says what is wrong with a template, "" if nothing is.
func checkProfile(template string) (wrong string) {
	if template == "" {
		return ""
	}
	if u, err := url.Parse(placeholder.ReplaceAllString(template, "x")); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return "https://… or http://…"
	}
	for _, name := range placeholder.FindAllString(template, -1) {
		if !slices.Contains(profileNames, strings.Trim(name, "{}")) {
			return fmt.Sprintf("%s is unknown: want {%s}", name, strings.Join(profileNames, "}, {"))
		}
	}
	return ""
}

// ProfileOf is the link to a task's profile between two times, with what is known of the
// task by placeholder; "" if the template is empty or needs what is not known.
func (r *Rotation) ProfileOf(from, to time.Time, known map[string]string) string {
	whole := true
	link := placeholder.ReplaceAllStringFunc(r.Profile, func(name string) string {
		switch name = strings.Trim(name, "{}"); name {
		case "from":
			return strconv.FormatInt(from.UnixMilli(), 10)
		case "to":
			return strconv.FormatInt(to.UnixMilli(), 10)
		case "from_time":
			return url.QueryEscape(from.UTC().Format(time.RFC3339))
		case "to_time":
			return url.QueryEscape(to.UTC().Format(time.RFC3339))
		}
		if known[name] == "" {
			whole = false
		}
		return url.QueryEscape(known[name])
	})
	if !whole {
		return ""
	}
	return link
}
