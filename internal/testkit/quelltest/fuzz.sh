#!/bin/sh
# Fuzzes every target of the tree for a time, e.g. 10m, and records that in a file:
#
#	fuzz.sh TIME RECORD
#
# A target that the record has with the same code and at least that time is left out, so
# that a call continues where an earlier one was interrupted. The code is that of the
# target's package and its tests. It is called in the root of the tree.
set -eu
usage="usage: fuzz.sh TIME RECORD, TIME a whole number and s, m or h"
time=${1:?$usage} record=${2:?$usage}
seconds=$(echo "$time" | awk '/^[0-9]+s$/ { print $1 + 0 } /^[0-9]+m$/ { print $1 * 60 } /^[0-9]+h$/ { print $1 * 3600 }')
[ -n "$seconds" ] || { echo "$usage" >&2 && exit 2; }
export LC_ALL=C

# lines DIR TARGET prints the other lines of the record.
lines() { awk -F '\t' -v dir="$1" -v target="$2" '$1 != dir || $2 != target' "$record"; }

status=0
for dir in $(grep -rl --include='*_test.go' '^func Fuzz' cmd internal | xargs -r -n1 dirname | sort -u); do
	code=$(cat "$dir"/*.go | sha256sum | cut -c1-16)
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$dir"/*_test.go); do
		if awk -F '\t' -v dir="$dir" -v target="$target" -v code="$code" -v least="$seconds" \
			'$1 == dir && $2 == target && $3 == code && $4 >= least { found = 1 } END { exit !found }' "$record"; then
			echo "$dir $target: fuzzed already"
			continue
		fi
		echo "$dir $target"
		if ! go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./$dir"; then
			status=1
			continue
		fi
		{ lines "$dir" "$target" && printf '%s\t%s\t%s\t%s\t%s\n' "$dir" "$target" "$code" "$seconds" "$(date -u +%F)"; } | sort >"$record.new"
		mv "$record.new" "$record"
	done
done
exit $status
