// Package xen has only tests, which run in the first domain of a Xen machine (make
// test-xen): they test the lab's Xen environment and the values of Xen's tools for its
// guests.
package xen
