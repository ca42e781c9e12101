// Package image makes and finds the disk images of the lab's guests. An image is a folder
// of the cache with a disk, as clouds have them (cloud-init, openssh-server), and the
// kernel and initrd of its system, with which a guest boots without firmware and boot
// loader. It has a contract for benchmarks, /bench/run (docs/lab.md).
package image
