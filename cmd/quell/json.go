package main

import (
	"encoding/json"
	"fmt"
)

// writeJSON writes a value for programs, indented since people look too.
func (a *app) writeJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// list makes no elements an empty list in JSON.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
