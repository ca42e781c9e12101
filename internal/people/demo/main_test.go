package demo

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// quick is the beat if it does not matter which task is named.
const quick = cacheBeat

// socketLine is before the agent's socket in what a played demo prints.
const socketLine = "socket "

// TestMain lets the test binary run the scene's parts (Tree starts it with the word
// "workload") and a demo that can be killed ("play").
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "workload" {
		s, err := workload.Parse(os.Args[2:])
		if err == nil {
			err = workload.Run(context.Background(), s)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "play" {
		_, err := Run(context.Background(), Options{Channel: CPU, Mode: plan.On, Seed: 4, Agent: os.Args[2], pace: quick,
			Started: func(socket string) { fmt.Println(socketLine + socket) }, Show: func(Event) {}})
		fmt.Fprintln(os.Stderr, "ended by itself:", err)
		os.Exit(1)
	}
	quelltest.Main(m)
}
