// Package config is the agent's configuration: one struct, filled from defaults, a YAML
// file, the environment and flags, in that order. All problems of all sources are
// reported at once, each with its key, its value and what is allowed; nothing is
// applied while there are problems.
package config
