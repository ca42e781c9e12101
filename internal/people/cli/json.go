package cli

import (
	"encoding/json"
	"fmt"
)

// writeJSON writes a value as JSON, indented for readability.
func (a *app) writeJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// list turns nil into an empty list for JSON.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
