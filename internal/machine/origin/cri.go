package origin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"google.golang.org/protobuf/encoding/protowire"
)

// Methods of the Container Runtime Interface (k8s.io/cri-api, pkg/apis/runtime/v1/api.proto),
// whose field numbers are those below. Version v1 is served by containerd since 1.6, by CRI-O since
// 1.23 and by cri-dockerd.
const (
	listSandboxes  = "/runtime.v1.RuntimeService/ListPodSandbox"
	listContainers = "/runtime.v1.RuntimeService/ListContainers"
)

// labels that the kubelet gives each container.
const (
	labelPod       = "io.kubernetes.pod.name"
	labelNamespace = "io.kubernetes.pod.namespace"
	labelContainer = "io.kubernetes.container.name"
)

// cri is a runtime's records by the ids of containers and of sandboxes, from its socket.
type cri struct {
	sockets []string // those that exist are asked
	clients map[string]*grpcClient
}

// records asks the runtimes. Sockets that do not exist are left out; the error is about those that
// do not answer.
func (c *cri) records(ctx context.Context) (map[string]*record, error) {
	all := map[string]*record{}
	var errs []error
	for _, socket := range c.sockets {
		if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if c.clients[socket] == nil {
			if c.clients == nil {
				c.clients = map[string]*grpcClient{}
			}
			c.clients[socket] = newGRPC(socket)
		}
		if err := listPods(ctx, c.clients[socket], all); err != nil {
			errs = append(errs, fmt.Errorf("ask the container runtime at %s: %w", socket, err))
		}
	}
	return all, errors.Join(errs...)
}

func (c *cri) close() {
	for _, client := range c.clients {
		client.close()
	}
}

// listPods adds the sandboxes, then the containers, with the labels and annotations of their
// sandboxes.
func listPods(ctx context.Context, c *grpcClient, all map[string]*record) error {
	answer, err := c.call(ctx, listSandboxes, nil)
	if err != nil {
		return err
	}
	if err := readSandboxes(answer, all); err != nil {
		return fmt.Errorf("read sandboxes: %w", err)
	}
	if answer, err = c.call(ctx, listContainers, nil); err != nil {
		return err
	}
	if err := readContainers(answer, all); err != nil {
		return fmt.Errorf("read containers: %w", err)
	}
	return nil
}

// readSandboxes reads ListPodSandboxResponse{1: PodSandbox{1: id, 2: PodSandboxMetadata{1: name,
// 3: namespace, 4: attempt}, 5: labels, 6: annotations}}.
func readSandboxes(message []byte, all map[string]*record) error {
	return fields(message, func(field protowire.Number, _ uint64, item []byte) error {
		if field != 1 {
			return nil
		}
		id, r := "", &record{sandbox: true, labels: map[string]string{}, annotations: map[string]string{}}
		err := fields(item, func(field protowire.Number, _ uint64, b []byte) error {
			switch field {
			case 1:
				id = string(b)
			case 2:
				return fields(b, func(field protowire.Number, _ uint64, b []byte) error {
					switch field {
					case 1:
						r.pod = string(b)
					case 3:
						r.namespace = string(b)
					}
					return nil
				})
			case 5:
				return mapEntry(r.labels, b)
			case 6:
				return mapEntry(r.annotations, b)
			}
			return nil
		})
		all[id] = r
		return err
	})
}

// readContainers reads ListContainersResponse{1: Container{1: id, 2: pod_sandbox_id,
// 3: ContainerMetadata{1: name, 2: attempt}, 4: ImageSpec{1: image, 18: user_specified_image},
// 8: labels}}.
func readContainers(message []byte, all map[string]*record) error {
	return fields(message, func(field protowire.Number, _ uint64, item []byte) error {
		if field != 1 {
			return nil
		}
		id, sandbox, r, own := "", "", &record{}, map[string]string{}
		err := fields(item, func(field protowire.Number, _ uint64, b []byte) error {
			switch field {
			case 1:
				id = string(b)
			case 2:
				sandbox = string(b)
			case 3:
				return fields(b, func(field protowire.Number, n uint64, b []byte) error {
					switch field {
					case 1:
						r.container = string(b)
					case 2:
						r.attempt = n
					}
					return nil
				})
			case 4:
				return fields(b, func(field protowire.Number, _ uint64, b []byte) error {
					if field == 1 && r.image == "" || field == 18 && len(b) > 0 {
						r.image = string(b)
					}
					return nil
				})
			case 8:
				return mapEntry(own, b)
			}
			return nil
		})
		r.pod, r.namespace = own[labelPod], own[labelNamespace]
		if name := own[labelContainer]; name != "" {
			r.container = name
		}
		if pod := all[sandbox]; pod != nil {
			r.pod, r.namespace, r.labels, r.annotations = pod.pod, pod.namespace, pod.labels, pod.annotations
		}
		all[id] = r
		return err
	})
}
