package lab

import "fmt"

// tune sets the machine's knobs to the cell's values before the run makes anything.
func (s *stage) tune() error {
	if len(s.cell.Knobs) == 0 {
		return nil
	}
	if s.Tune == nil {
		return fmt.Errorf("set knobs: %w", &LackError{What: "setting knobs of the machine is not supported here"})
	}
	undo, err := s.Tune(s.cell.Knobs)
	if err != nil {
		return err
	}
	s.undo = undo
	return nil
}

// untune resets the knobs, whatever the result of the run.
func (s *stage) untune() error {
	if s.undo == nil {
		return nil
	}
	return s.undo()
}
