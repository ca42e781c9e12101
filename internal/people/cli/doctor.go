package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/runq"
	"github.com/quell-dev/quell/internal/machine/counter/sources"
	"github.com/quell-dev/quell/internal/machine/counter/uprobe"
	"github.com/quell-dev/quell/internal/machine/counter/usage"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/report"
)

func (a *commands) doctor() *cobra.Command {
	var require []string
	cmd := &cobra.Command{
		Use: "doctor", Short: "show what can be counted and capped on this machine, and why the rest cannot", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := a.diagnose(cmd.Context())
			if err != nil {
				return app.Usage(err, "mount /proc")
			}
			if err := known(d, require); err != nil {
				return err
			}
			text := func(w io.Writer, d report.Diagnosis, s report.Style) error {
				mode := ""
				if st, err := a.client().Status(cmd.Context()); err == nil {
					mode = st.Mode.String()
				}
				return report.Doctor(w, d, nextSteps(d, mode), s)
			}
			if err := app.Show(a.App, d, text); err != nil {
				return err
			}
			return requireError(d, require)
		},
	}
	cmd.Flags().StringSliceVar(&require, "require", nil, "exit with 1 if one of these is missing; the names are those that doctor prints")
	return a.WithJSON(cmd)
}

// known refuses a name that a diagnosis does not have.
func known(d report.Diagnosis, require []string) error {
	for _, name := range require {
		if _, ok := d.Lookup(name); !ok {
			return fmt.Errorf("--require %q: unknown capability, want some of %s", name, strings.Join(d.Names(), ", "))
		}
	}
	return nil
}

func requireError(d report.Diagnosis, require []string) error {
	var lacking, remedies []string
	for _, name := range require {
		if c, _ := d.Lookup(name); !c.OK {
			lacking = append(lacking, name+" ("+c.Reason+")")
			if c.Remedy != "" && !slices.Contains(remedies, c.Remedy) {
				remedies = append(remedies, c.Remedy)
			}
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	return app.Negative(fmt.Errorf("required but missing: %s", strings.Join(lacking, ", ")), strings.Join(remedies, "; "))
}

// nextSteps are the three most valuable things to do after a diagnosis, the first one first. mode is the
// enforcement mode of the agent; "": none answers.
func nextSteps(d report.Diagnosis, mode string) []string {
	var steps []string
	lacking := func(name, gain string) {
		if c, ok := d.Lookup(name); ok && !c.OK && c.Remedy != "" {
			steps = append(steps, c.Remedy+": "+gain)
		}
	}
	lacking("cgroups", "tasks are found by their cgroups")
	lacking("caps", "without it quell names a noisy neighbour and cannot cap it")
	lacking(string(sample.RunQ), "it shows which task waits for a CPU, and which ran meanwhile")
	switch mode {
	case "":
		steps = append(steps, "`quell init agent.yaml`, read it, then `quell-agent --config agent.yaml`: the agent finds which tasks suffer, and changes nothing until told to",
			"`quell demo`, as root: a real noisy neighbour is found, capped and removed on this machine within a minute")
	case command.On.String():
		steps = append(steps, "`quell top`: which tasks suffer now; `quell incidents last`: what was found and done")
	default:
		steps = append(steps, "`quell top`: which tasks suffer now; `quell incidents last`: what was found",
			"read some incidents, then `quell enforcement on --reason \"…\"`: the agent, now in mode "+mode+", may then cap")
	}
	lacking(string(sample.CPI), "it shows harm through shared caches and memory")
	steps = append(steps, "let a service count its transactions (docs/progress-file.md): signal cpt then measures the cost of its own work",
		"`quell ui`: the same in a browser")
	return steps[:3]
}

// diagnose tests what quell needs.
func (a *commands) diagnose(ctx context.Context) (report.Diagnosis, error) {
	h, err := host.Open("/")
	if err != nil {
		return nil, err
	}
	topology, err := h.Topology()
	if err != nil {
		return nil, err
	}
	machine := h.Capabilities()
	signals, perTask := signalCapabilities(h, topology)
	perf := append(counter.Capabilities(h.Layout().Unified, topology.Online), counter.DescriptorCapability(perTask))
	return report.Diagnosis{
		{Name: "signals that can be counted here", Capabilities: signals},
		{Name: "enforcement", Capabilities: []host.Capability{quotaCapability(machine), ioCaps(h), a.agentCapability(ctx)}},
		{Name: "cache sharing of CPUs", Capabilities: sharing(topology)},
		{Name: "machine", Capabilities: machine},
		{Name: "perf events", Capabilities: perf},
		{Name: "usage and pressure of tasks", Capabilities: []host.Capability{usage.Capability(h)}},
		{Name: "run queue", Capabilities: runq.Capabilities()},
		{Name: "transactions", Capabilities: []host.Capability{uprobe.Capability(), counter.NetworkCapability()}},
	}, nil
}

// ioCaps reports whether tasks can be limited on disks.
func ioCaps(h *host.Host) host.Capability {
	const name, v2 = "io caps", "boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1)"
	mount, v1 := h.Layout().IO()
	switch {
	case mount == "":
		return host.Missing(name, "no mounted hierarchy has the io controller",
			v2+" or mount the v1 blkio hierarchy; until then signal io names suspects but cannot cap them")
	case !v1:
		return host.Present(name, "io.max, for tasks that have the io controller")
	}
	if _, err := h.ReadValue(mount + "/blkio.throttle.read_bps_device"); err != nil {
		return host.Missing(name, err.Error(), "use a kernel with CONFIG_BLK_DEV_THROTTLING")
	}
	c := host.Present(name, "v1 blkio.throttle, for tasks that have a cgroup in that hierarchy")
	c.Reason, c.Remedy = "v1 limits only "+host.BlkioScope, v2+" to limit that too"
	return c
}

// signalCapabilities opens each source, as the agent does. perTask is how many descriptors they
// take for each task.
func signalCapabilities(h *host.Host, topology host.Topology) (all []host.Capability, perTask int) {
	for _, sig := range sample.Signals() {
		c := host.Capability{Name: string(sig.Name)}
		if s, err := sources.Open(sig.Name, h, topology, time.Second); err != nil {
			c.Reason, c.Remedy = err.Error(), counter.Remedy(err)
		} else {
			info := s.Info()
			perTask += info.WindowFDs
			c.OK, c.Detail, c.Reason = true, sig.Cost+", counted as "+info.Variant, cmp.Or(info.Fallback, info.Expensive)
			if err := s.Close(); err != nil {
				c.OK, c.Reason = false, err.Error()
			}
		}
		all = append(all, c)
	}
	return all, perTask
}

// quotaCapability is the machine's CPU quota capability under its user-visible name.
func quotaCapability(machine []host.Capability) host.Capability {
	i := slices.IndexFunc(machine, func(c host.Capability) bool { return c.Name == "cpu quota" })
	c := machine[i]
	c.Name = "caps"
	return c
}

// agentCapability reports whether an agent answers.
func (a *commands) agentCapability(ctx context.Context) host.Capability {
	st, err := a.client().Status(ctx)
	var unreachable *api.UnreachableError
	switch {
	case errors.As(err, &unreachable):
		return host.Missing("agent", err.Error(), unreachable.Remedy())
	case err != nil:
		return host.Missing("agent", err.Error(), "")
	}
	return host.Present("agent", fmt.Sprintf("quell-agent %s answers at %s, enforcement %s", st.Version, a.socket, st.Mode))
}

// look is the measuring time for each pair of CPUs.
const look = 50 * time.Millisecond

// sharing compares sysfs on last-level caches with the measured round trip of a cache
// line between CPUs. In a virtual machine they often differ, and the measured result
// changes when the hypervisor moves virtual CPUs.
func sharing(t host.Topology) []host.Capability {
	pairs := cpuPairs(t)
	trips, errs := make([]workload.RoundTrip, len(pairs)), make([]error, len(pairs))
	var measured []workload.RoundTrip
	for i, p := range pairs {
		trips[i], errs[i] = workload.PingPong(p[0].ID, p[1].ID, look)
		if errs[i] == nil {
			measured = append(measured, trips[i])
		}
	}
	var all []host.Capability
	for i, p := range pairs {
		c := host.Capability{Name: fmt.Sprintf("cache of CPUs %d and %d", p[0].ID, p[1].ID)}
		said := "sysfs says: nothing"
		told := p[0].LLC.ID >= 0 && p[1].LLC.ID >= 0
		sameCache := p[0].LLC.CPUs.Has(p[1].ID)
		if told {
			said = "sysfs says: " + sharedText(sameCache)
		}
		now := workload.SharesCache(trips[i], measured...)
		text := fmt.Sprintf("%s; measured now: %s, %d ns a round trip", said, sharedText(now), trips[i].Min.Nanoseconds())
		switch {
		case errs[i] != nil:
			c.Reason = fmt.Sprintf("%s; not measured: %v", said, errs[i])
		case told && now != sameCache:
			c.Reason = text
			c.Remedy = "trust the measurement, and expect it to change: the hypervisor may move virtual CPUs"
		default:
			c.OK, c.Detail = true, text
		}
		all = append(all, c)
	}
	return all
}

func sharedText(shared bool) string {
	if shared {
		return "shared"
	}
	return "not shared"
}

// cpuPairs selects the CPUs to measure: the first with some under its own last-level cache,
// and with one under each of some others.
func cpuPairs(t host.Topology) [][2]host.CPU {
	const each = 3
	var near, far [][2]host.CPU
	seen := map[int]bool{}
	for i, c := range t.CPUs {
		first := t.CPUs[0]
		switch {
		case i == 0 || first.Siblings.Has(c.ID): // siblings share more than the last-level cache
		case first.LLC.CPUs.Has(c.ID) || c.LLC.ID < 0:
			if len(near) < each {
				near = append(near, [2]host.CPU{first, c})
			}
		case len(far) < each && !seen[c.LLC.ID]:
			seen[c.LLC.ID] = true
			far = append(far, [2]host.CPU{first, c})
		}
	}
	return append(near, far...)
}
