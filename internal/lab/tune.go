package lab

import "fmt"

// setKnobs sets the machine's knobs to the cell's values before the run makes anything.
func (s *execution) setKnobs() (err error) {
	if len(s.cell.Knobs) == 0 {
		return nil
	}
	if s.SetKnobs == nil {
		return fmt.Errorf("set knobs: %w", &LackError{What: "setting knobs of the machine is not supported here"})
	}
	s.undo, err = s.SetKnobs(s.cell.Knobs)
	return err
}

// resetKnobs resets the knobs, whatever the result of the run.
func (s *execution) resetKnobs() error {
	if s.undo == nil {
		return nil
	}
	return s.undo()
}
