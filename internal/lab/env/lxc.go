package env

import (
	"context"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
)

func (m *Maker) container(context.Context, *study.Part) (lab.Environment, error) {
	return nil, &lab.LackError{What: "containers are not there yet"}
}
