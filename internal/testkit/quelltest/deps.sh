#!/bin/sh
# Installs the programs that the test suites run, as Debian packages. It does nothing if
# all are installed.
#
#	deps.sh [-n] [SUITE …]
#
# programs.txt has the suites; all if none is named. With -n it prints in one line what is
# missing, and installs nothing.
set -eu
tell=
if [ "${1-}" = -n ]; then tell=1 && shift; fi
table=$(dirname "$0")/programs.txt
for suite; do
	grep -q "^$suite " "$table" || { echo "deps: unknown suite \"$suite\": want test, guests, browser, packages, prometheus or soak" >&2 && exit 1; }
done

# missing prints a line for each program that is not installed: its name and its package.
missing() {
	awk -v suites="$*" 'BEGIN { n = split(suites, s); for (i in s) named[s[i]] }
		/^[a-z]/ && (n == 0 || $1 in named) && !seen[$2]++ { print $2, $3 }' "$table" |
		while read -r program package; do
			command -v "$program" >/dev/null || echo "$program $package"
		done
}

# apt waits for another apt-get to end, and does not prompt.
apt() {
	out=$(DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" 2>&1) || { echo "deps: apt-get $*: $out" >&2 && exit 1; }
}

lacks=$(missing "$@")
names=$(echo "$lacks" | awk '{ printf "%s%s", sep, $1; sep = ", " }')
if [ -z "$lacks" ]; then
	exit 0
elif [ "$tell" ]; then
	echo "not installed: $names; tests that need them are skipped (make test-deps installs them)"
	exit 0
fi
packages=$(echo "$lacks" | awk '!seen[$2]++ { print $2 }')
echo apt-get install $packages
apt update -qq
apt install -y -qq --no-install-recommends $packages
lacks=$(missing "$@")
[ -z "$lacks" ] || { echo "deps: still missing:" $lacks >&2 && exit 1; }
