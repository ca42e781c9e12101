package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Decode reads a request's JSON strictly: an unknown field, or anything after the
// value, is an error.
func Decode(r io.Reader, v any) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, more := d.Token(); more == nil {
			err = errors.New("more than one value")
		} else if !errors.Is(more, io.EOF) {
			err = more
		}
	}
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	return nil
}
