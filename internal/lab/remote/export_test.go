package remote

// For the tests of package remote_test, which need package env.
var (
	HelperPath = helperPath
	HashOf     = hashOf
)
