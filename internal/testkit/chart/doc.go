// Package chart has the tests of the Helm chart (deploy/helm/quell) and of the images (make
// images). What needs no tool is part of make test: the chart's copies of other files, and that
// its values are documented.
//
// `make test-helm` does the rest, with the build tag helm, on the real thing: helm renders the
// chart, a kube-apiserver with etcd accepts what it rendered and answers what the service account
// may do, and a kubelet with containerd runs the agent and the server from their images.
// The folder kube is a module that pins these programs of Kubernetes; it has no code.
package chart
