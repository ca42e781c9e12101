package config

import (
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/machine/origin"
)

// Names configures where the names of tasks are read from.
type Names struct {
	CRI         []string      `key:"cri" help:"sockets of container runtimes (CRI); those that exist are asked"`
	Docker      string        `key:"docker" help:"Docker's data directory; empty: none"`
	Podman      []string      `key:"podman" help:"storages of podman; those of users are found by the user"`
	Kubelet     Kubelet       `key:"kubelet"`
	Annotations bool          `key:"annotations" help:"pods may say their class, job and protection by annotations quell.io/class, quell.io/job and quell.io/protect, Docker's containers by labels; false where tenants write them"`
	Timeout     time.Duration `key:"timeout" help:"a question to a runtime or a look at processes ends after this" min:"10ms" max:"1m"`
}

// Kubelet configures how the kubelet is asked for the owners and priority classes of pods.
type Kubelet struct {
	URL   string `key:"url" help:"the kubelet's list of pods, https://127.0.0.1:10250/pods: CRI does not tell priority classes and owners; empty: it is not asked"`
	Token string `key:"token" help:"file with the bearer token for it"`
	CA    string `key:"ca" help:"file with the CA of the kubelet's certificate; empty: the machine's"`
}

func defaultNames() Names {
	return Names{
		CRI: []string{"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock", "/run/k0s/containerd.sock",
			"/var/snap/microk8s/common/run/containerd.sock", "/run/cri-dockerd.sock"},
		Docker: "/var/lib/docker", Podman: []string{"/var/lib/containers/storage"}, Annotations: true, Timeout: 2 * time.Second,
	}
}

// Sources is the same for package origin.
func (n *Names) Sources() origin.Sources {
	return origin.Sources{CRI: n.CRI, Docker: n.Docker, Podman: n.Podman, Timeout: n.Timeout,
		Kubelet: origin.Kubelet{URL: n.Kubelet.URL, Token: n.Kubelet.Token, CA: n.Kubelet.CA}}
}

func (n *Names) validate(add func(key string, value any, want string)) {
	k := &n.Kubelet
	https := strings.HasPrefix(k.URL, "https://")
	switch {
	case k.URL == "":
	case !https && !strings.HasPrefix(k.URL, "http://"):
		add("names.kubelet.url", k.URL, "https://127.0.0.1:10250/pods, or empty")
	case !https && k.Token != "":
		add("names.kubelet.token", k.Token, "a URL with https: a token is not sent in the clear")
	}
}
