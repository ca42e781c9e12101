package labcmd

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/image"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

func (a *commands) labImage() *cobra.Command {
	cmd := &cobra.Command{
		Use: "image", Short: "make disk images of guests", Args: app.NoArgs,
		Example: "  quell lab image build bench",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.labImageBuild())
	return cmd
}

func (a *commands) labImageBuild() *cobra.Command {
	var o image.Options
	var gib int
	cmd := &cobra.Command{
		Use: "build NAME", Short: "make a disk image from Debian's packages, for studies with image: NAME", Args: cobra.ExactArgs(1),
		Long: `build makes a disk image for guests of the driver qemu, from the packages of the archive that
apt is configured for: a kernel, systemd, cloud-init, openssh-server, sysbench and stress-ng.
Its programs are started by /bench/run PROGRAM; --bench adds to them (docs/lab.md).

It needs root, mmdebstrap and some minutes. The image is stored in the cache. Nothing is
left of a build that was stopped, but for a folder that the next build removes.`,
		Example: `  quell lab image build bench
  quell lab image build spec --bench /opt/spec-programs --packages gfortran,libgomp1 --disk 20`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if name == "" || strings.ContainsAny(name, "/. ") {
				return app.Usage(fmt.Errorf("image name %q", name), "use letters, digits and dashes")
			}
			if os.Geteuid() != 0 {
				return app.Usage(errors.New("build image: not root: its files belong to root"), "run it as root (sudo)")
			}
			if gib < 1 {
				return app.Usage(fmt.Errorf("--disk %d", gib), "want at least 1 (GiB)")
			}
			o.Size = int64(gib) << 30
			show := a.Progress(a.Out)
			began := a.Now()
			o.Log = func(line string) {
				if show.Live() {
					show.Draw("%s: %s", formatDuration(a.Now().Sub(began)), line)
				} else if !strings.HasPrefix(line, "I: ") { // mmdebstrap's own steps
					fmt.Fprintln(a.Out, printable.Text(line))
				}
			}
			i, err := image.Build(cmd.Context(), name, o)
			show.Clear()
			if missing := (*guest.MissingError)(nil); errors.As(err, &missing) {
				return app.Negative(fmt.Errorf("build image %s: %s is missing: %w", name, missing.What, missing.Err), missing.Remedy)
			}
			if err != nil {
				return app.Negative(err, "the error says what to change; the archive is that of apt (apt-get update)")
			}
			fmt.Fprintf(a.Out, "image %s: %s, made in %s\n", name, i.Disk, formatDuration(a.Now().Sub(began)))
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&o.Packages, "packages", nil, "more of Debian's packages")
	cmd.Flags().StringVar(&o.Bench, "bench", "", "folder with more programs for /bench/run")
	cmd.Flags().IntVar(&gib, "disk", 2, "size of the disk, GiB")
	return cmd
}
