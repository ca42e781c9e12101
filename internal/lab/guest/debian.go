package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Fetch downloads Debian's cloud kernels of these architectures, with modules and
// headers, into the cache: those that are missing, or all with renew. It uses the archive
// that apt is configured for, with its own apt state: the host's packages and
// architectures are not changed. It logs each download on log, one line each. A kernel is
// about 30 MB, unpacked 150 MB.
func Fetch(ctx context.Context, log io.Writer, renew bool, archs ...Arch) error {
	var missing []Arch
	return withCacheLock(ctx, func(cache string) bool {
		missing = slices.DeleteFunc(slices.Clone(archs), func(a Arch) bool {
			_, err := find(cache, a)
			return err == nil && !renew
		})
		return len(missing) == 0
	}, func(cache string, d *debian) error {
		for _, arch := range missing {
			k, err := d.kernel(arch)
			if err != nil {
				return fmt.Errorf("fetch kernel for %s: %w", arch, err)
			}
			place := filepath.Join(cache, string(arch))
			if err := os.RemoveAll(place); err != nil {
				return fmt.Errorf("fetch kernel for %s: %w", arch, err)
			}
			if err := os.Rename(filepath.Join(d.dir, string(arch)), place); err != nil {
				return fmt.Errorf("fetch kernel for %s: %w", arch, err)
			}
			fmt.Fprintf(log, "guest kernel for %s: %s\n", arch, k.Release)
		}
		return nil
	})
}

// withCacheLock allows one process at a time to change the cache. If something is missing, do
// gets a view of the archive with a scratch folder in the cache.
func withCacheLock(ctx context.Context, there func(cache string) bool, do func(cache string, d *debian) error) error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return fmt.Errorf("fetch for guests: %w", err)
	}
	// Other processes may do this at the same time.
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("fetch for guests: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("fetch for guests: lock %s: %w", lock.Name(), err)
	}
	if there(cache) {
		return nil
	}
	scratch, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return fmt.Errorf("fetch for guests: %w", err)
	}
	defer os.RemoveAll(scratch)
	d, err := openDebian(ctx, scratch)
	if err != nil {
		return fmt.Errorf("fetch for guests: %w", err)
	}
	return do(cache, d)
}

// debian is a private view of the archive.
type debian struct {
	ctx     context.Context
	dir     string
	options []string // for every apt command
}

func openDebian(ctx context.Context, dir string) (*debian, error) {
	d := &debian{ctx: ctx, dir: dir, options: []string{
		// The host's architecture is first. Both are needed, because headers include
		// programs that run on the host.
		"-o", "APT::Architecture=" + runtime.GOARCH, "-o", "APT::Architectures::=" + string(AMD64), "-o", "APT::Architectures::=" + string(ARM64),
		"-o", "Dir::State::Lists=" + dir + "/lists", "-o", "Dir::State::status=" + dir + "/status", "-o", "Dir::Cache=" + dir + "/cache",
		"-o", "Acquire::Languages=none", "-o", "Acquire::Retries=3", "-o", "APT::Sandbox::User=root", "-q",
	}}
	for _, sub := range []string{"lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(dir+"/status", nil, 0o644); err != nil {
		return nil, err
	}
	_, err := d.apt("apt-get", "update")
	return d, err
}

// run runs a program in the download folder; its error includes what it printed.
func (d *debian) run(name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(d.ctx, name, args...)
	cmd.Dir = filepath.Join(d.dir, "debs")
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, &MissingError{name, "use a Debian system, or put boot/ and lib/ of a kernel package into the cache by hand", err}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(problems.Bytes()))
	}
	return out, nil
}

// apt runs one of apt's programs on the private view.
func (d *debian) apt(name string, args ...string) ([]byte, error) {
	return d.run(name, append(slices.Clone(d.options), args...)...)
}

// depends finds a package's dependencies by the prefixes of their names, because exact
// versions disappear from the archive. The results have no architecture.
func (d *debian) depends(pkg string, prefixes ...string) (names []string, err error) {
	out, err := d.apt("apt-cache", "depends", pkg)
	if err != nil {
		return nil, err
	}
	self, _, _ := strings.Cut(pkg, ":")
	var all []string
	for _, word := range strings.Fields(string(out)) {
		// "linux-kbuild-6.1:arm64", or "<linux-kbuild-6.1>" for a virtual package that
		// other packages provide.
		name, _, _ := strings.Cut(strings.Trim(word, "<>"), ":")
		all = append(all, name)
	}
	for _, prefix := range prefixes {
		i := slices.IndexFunc(all, func(name string) bool { return strings.HasPrefix(name, prefix) && name != self })
		if i < 0 {
			return nil, fmt.Errorf("%s has no dependency %s*:\n%s", pkg, prefix, out)
		}
		names = append(names, all[i])
	}
	return names, nil
}

// unpack downloads packages and unpacks them into one folder.
func (d *debian) unpack(tree string, packages []string, suffix string) error {
	args := []string{"download"}
	for _, p := range packages {
		args = append(args, p+suffix)
	}
	if _, err := d.apt("apt-get", args...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(d.dir, "debs", "*.deb"))
	if err != nil {
		return err
	}
	if len(debs) != len(packages) {
		return fmt.Errorf("download %s: got %q", packages, debs)
	}
	for _, deb := range debs {
		if _, err := d.run("dpkg", "-x", deb, tree); err != nil {
			return err
		}
		if err := os.Remove(deb); err != nil {
			return err
		}
	}
	return nil
}

// kernel downloads a kernel and unpacks it into a folder named after its architecture.
func (d *debian) kernel(arch Arch) (Kernel, error) {
	foreign := ":" + string(arch)
	image, err := d.depends("linux-image-cloud-"+string(arch)+foreign, "linux-image-")
	if err != nil {
		return Kernel{}, err
	}
	headers := strings.Replace(image[0], "image", "headers", 1)
	shared, err := d.depends(headers+foreign, "linux-headers-", "linux-kbuild-")
	if err != nil {
		return Kernel{}, err
	}
	// The shared packages are for the host: linux-kbuild has programs that run there.
	packages := append([]string{image[0] + foreign, headers + foreign}, shared...)
	tree := filepath.Join(d.dir, string(arch))
	if err := d.unpack(tree, packages, ""); err != nil {
		return Kernel{}, err
	}
	k, err := find(d.dir, arch)
	if err != nil {
		return Kernel{}, err
	}
	if _, err := d.run("depmod", "-b", tree, k.Release); err != nil {
		return Kernel{}, err
	}
	return k, relocate(k.Headers)
}

var included = regexp.MustCompile(`(?m)^include /usr/src/`)

// relocate makes headers usable at their present place: their Makefile includes another
// one by its absolute path.
func relocate(headers string) error {
	name := filepath.Join(headers, "Makefile")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	text = included.ReplaceAll(text, []byte(`include $$(dir $$(lastword $$(MAKEFILE_LIST)))../`))
	return os.WriteFile(name, text, 0o644)
}
