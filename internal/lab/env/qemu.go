package env

import (
	"context"
	"runtime"

	"github.com/quell-dev/quell/internal/guest"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
)

func nativeArch() guest.Arch { return guest.Arch(runtime.GOARCH) }

func (m *Maker) machine(context.Context, *study.Part) (lab.Environment, error) {
	return nil, &lab.LackError{What: "guests are not there yet"}
}
