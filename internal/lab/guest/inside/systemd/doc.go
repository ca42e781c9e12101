// Package systemd has the tests of the packaged unit, run by systemd itself as PID 1 of a
// guest. They are built with the tag "inguest" and run by `make test-guests`.
package systemd
