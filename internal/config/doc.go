// Package config is the agent's configuration: one struct, filled from
// defaults, a YAML file, the environment and flags, in that order. Every
// problem of every source is found and reported at once, each with its key,
// its value and what is allowed; nothing is applied before all is right.
package config
