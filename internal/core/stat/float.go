package stat

import (
	"encoding/json"
	"math"
)

// Float is a number that may be missing: NaN, which JSON lacks, is written as null.
type Float float64

// MarshalJSON implements json.Marshaler.
func (v Float) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(v))
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Float) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*v = Float(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(v))
}
