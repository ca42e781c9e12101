#!/bin/sh
# Fuzzes the targets of the tree for a time each, e.g. 10m, two at once, and records that in a file:
#
#	fuzz.sh TIME RECORD [TARGETS]
#
# TARGETS is an extended regular expression of lines "package target"; without it all are fuzzed.
# The record has for each target how long it was fuzzed with its present code, that of its package
# and its tests. A call adds what is missing, targets with the least time first, in slices of at most
# two minutes: it continues where an earlier one was interrupted. A target that fails is marked in
# the record and begins anew in the next call.
# A new input is made smaller for at most 5 s and not, as go test does, for 60: where inputs are large, that
# took most of the time.
# Commands are run by $FUZZRUN, e.g. nice. It is called in the root of the tree.
set -eu
usage="usage: fuzz.sh TIME RECORD [TARGETS], TIME a whole number and s, m or h"
export LC_ALL=C

# add DIR TARGET CODE SECONDS [failed] replaces the target's line in the record.
add() {
	exec 9<"$0"
	flock 9
	{
		awk -F '\t' -v dir="$1" -v target="$2" '$1 != dir || $2 != target' "$record"
		printf '%s\t%s\t%s\t%s\t%s%s\n' "$1" "$2" "$3" "$4" "$(date -u +%F)" "${5:+	$5}"
	} | sort >"$record.new"
	mv "$record.new" "$record"
	exec 9<&-
}

# least SECONDS prints how many targets of the record were fuzzed for so long with their present code.
least() { awk -F '\t' -v least="$1" 'NR == FNR { code[$1, $2] = $3; next } code[$1, $2] == $3 && $4 >= least { n++ } END { print n + 0 }' "$targets" "$record"; }

# ended reports that go test found nothing in all of its time. On a busy machine it fails nevertheless when that
# is over, with nothing but a line of its own (https://go.dev/issue/75804).
ended() { [ "$(sed -n '/^--- FAIL: /,$p' "$log" | sed '1d;/^FAIL/d;/^exit status 1$/d')" = "    context deadline exceeded" ]; }

if [ "${1:-}" = --one ]; then # by itself: SECONDS RECORD TARGETS, then DIR TARGET CODE FUZZED of one
	shift
	seconds=$1 record=$2 targets=$3 dir=$4 target=$5 code=$6 fuzzed=$7
	log=$(mktemp)
	trap 'rm -f "$log"' EXIT
	while [ "$fuzzed" -lt "$seconds" ]; do
		slice=$((seconds - fuzzed))
		[ "$slice" -le 120 ] || slice=120
		if ! ${FUZZRUN:-} go test -run '^$' -fuzz "^$target\$" -fuzztime "${slice}s" -fuzzminimizetime 5s -parallel 1 "./$dir" >"$log" 2>&1 && ! ended; then
			add "$dir" "$target" "$code" 0 failed
			echo "$dir $target: failed"
			cat "$log"
			exit 1
		fi
		fuzzed=$((fuzzed + slice))
		add "$dir" "$target" "$code" "$fuzzed"
		echo "$dir $target: $fuzzed of $seconds s, $(least "$seconds") of $(wc -l <"$targets") targets done"
	done
	exit 0
fi

time=${1:?$usage} record=${2:?$usage}
seconds=$(echo "$time" | awk '/^[0-9]+s$/ { print $1 + 0 } /^[0-9]+m$/ { print $1 * 60 } /^[0-9]+h$/ { print $1 * 3600 }')
[ -n "$seconds" ] || { echo "$usage" >&2 && exit 2; }
targets=$(mktemp)
trap 'rm -f "$targets" "$targets".todo' EXIT
for dir in $(grep -rl --include='*_test.go' '^func Fuzz' cmd internal | xargs -r -n1 dirname | sort -u); do
	code=$(cat "$dir"/*.go | sha256sum | cut -c1-16)
	for target in $(sed -n "s/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p" "$dir"/*_test.go); do
		if echo "$dir $target" | grep -qE "${3:-}"; then
			printf '%s\t%s\t%s\n' "$dir" "$target" "$code"
		fi
	done
done >"$targets"
awk -F '\t' -v least="$seconds" 'NR == FNR { fuzzed[$1, $2, $3] = $4; next }
	fuzzed[$1, $2, $3] < least { print fuzzed[$1, $2, $3] + 0, $1, $2, $3 }' "$record" "$targets" | sort -s -n -k1,1 >"$targets.todo"
left=$(awk -v least="$seconds" '{ n += least - $1 } END { print int((n + 119) / 120) }' "$targets.todo")
echo "$(wc -l <"$targets.todo") of $(wc -l <"$targets") targets to fuzz, at least $left minutes"
awk '{ print $2, $3, $4, $1 }' "$targets.todo" | xargs -r -P 2 -n 4 "$0" --one "$seconds" "$record" "$targets"
