// Package xen has tests only, which run in the first domain of a Xen machine
// (make test-xen): the lab's Xen environment, and what Xen's tools say of its
// guests.
package xen
