package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Platform returns the CPU type as the key of a spec: vendor, family, model
// and stepping ("AuthenticAMD-25-1-1"), on arm64 implementer, part, variant and
// revision ("arm-0x41-0xd0c-3-1"), then "-vm" in a virtual machine. Machines
// with several types have all of them, sorted and joined by "+".
func (h *Host) Platform() (sample.Platform, error) {
	text, err := os.ReadFile(h.Path("/proc/cpuinfo"))
	if err != nil {
		return "", fmt.Errorf("read platform: %w", err)
	}
	name, hypervisor, err := parseCPUInfo(text)
	if err != nil {
		return "", fmt.Errorf("read platform: %w", err)
	}
	if hypervisor || h.hypervisor() != "" {
		name += "-vm"
	}
	return sample.Platform(name), nil
}

// parseCPUInfo names the CPU types in /proc/cpuinfo and reports whether x86's
// hypervisor flag is set.
func parseCPUInfo(text []byte) (name string, hypervisor bool, err error) {
	var names []string
	fields := make(map[string]string)
	flush := func() {
		var parts []string
		switch {
		case fields["vendor_id"] != "":
			parts = []string{fields["vendor_id"], fields["cpu family"], fields["model"], fields["stepping"]}
		case fields["CPU implementer"] != "":
			parts = []string{"arm", fields["CPU implementer"], fields["CPU part"],
				strings.TrimPrefix(fields["CPU variant"], "0x"), fields["CPU revision"]}
		}
		if n := strings.Join(parts, "-"); n != "" && !slices.Contains(names, n) {
			names = append(names, n)
		}
		clear(fields)
	}
	for line := range bytes.Lines(text) {
		key, value, ok := strings.Cut(string(line), ":")
		if !ok {
			flush()
			continue
		}
		key, value = strings.TrimSpace(key), strings.Join(strings.Fields(value), " ")
		if key == "flags" && slices.Contains(strings.Fields(value), "hypervisor") {
			hypervisor = true
		}
		fields[key] = value
	}
	flush()
	if len(names) == 0 {
		return "", false, errors.New("cpuinfo names neither a vendor_id nor a CPU implementer")
	}
	slices.Sort(names)
	return strings.Join(names, "+"), hypervisor, nil
}

// hypervisor names the hypervisor of a machine without x86's hypervisor flag,
// "" if there is no sign of one. Xen and firmware device trees name it,
// otherwise the machine's own names do (DMI).
func (h *Host) hypervisor() string {
	if kind, err := h.ReadValue("/sys/hypervisor/type"); err == nil && kind != "" {
		return kind
	}
	if kind, err := h.ReadValue("/proc/device-tree/hypervisor/compatible"); err == nil {
		return strings.Trim(kind, "\x00")
	}
	vendor, _ := h.ReadValue("/sys/class/dmi/id/sys_vendor")
	product, _ := h.ReadValue("/sys/class/dmi/id/product_name")
	switch {
	case strings.Contains(product, ".metal"): // bare metal of a cloud
		return ""
	case vendor == "QEMU", vendor == "Amazon EC2", vendor == "Xen", vendor == "KubeVirt", strings.HasPrefix(vendor, "VMware"):
		return vendor
	case strings.Contains(product, "Virtual Machine"), strings.HasPrefix(product, "KVM"), strings.HasPrefix(product, "OpenStack"),
		product == "Google Compute Engine", product == "vServer": // of Hetzner
		return product
	}
	return ""
}
