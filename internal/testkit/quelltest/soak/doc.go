// Package soak has the tests of soak.sh, which runs the tests of one commit many times.
package soak
