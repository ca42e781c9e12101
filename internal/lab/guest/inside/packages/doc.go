// Package packages is tests that install quell's Debian packages in a fresh Debian
// (internal/lab/guest, TestPackages). They run only there.
package packages
