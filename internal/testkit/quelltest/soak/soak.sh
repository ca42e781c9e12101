#!/usr/bin/env bash
# Runs the tests of one commit many times in parallel with a CPU load, and keeps a record,
# so that it continues where it was interrupted (make soak-gate, docs/testing.md).
#
#	soak.sh [-tests N] [-ci N] [-dir DIR] [-deadline TIME]
#
# N is how often make test and .ci/run are run, TIME the maximum of one run, as timeout(1)
# has it. Each run is made in a fresh clone of the commit, so that edits meanwhile change
# nothing, with GOFLAGS=-count=1, so that no result comes from the test cache. A tree with
# uncommitted changes is refused. DIR has a folder for each commit, with the clone, the logs
# and the record: a line for each finished run. Another commit starts anew. An interrupt,
# also a kill -9, loses only the current run. Processes that a killed soak left running are
# ended by the next one.
#
# It prints a table at the end and exits with 1 unless every run passed.
set -euo pipefail

tests=6 ci=1 dir=${XDG_CACHE_HOME:-$HOME/.cache}/quell/soak deadline=2h
load=${SOAK_LOAD:-stress-ng --cpu 2 --quiet}

fail() {
	echo "soak: $*" >&2
	exit 1
}

while (($#)); do
	case $1 in
	-tests) tests=$2 ;;
	-ci) ci=$2 ;;
	-dir) dir=$2 ;;
	-deadline) deadline=$2 ;;
	*) fail "unknown argument $1; want -tests N, -ci N, -dir DIR or -deadline TIME" ;;
	esac
	shift 2
done

# left lists the processes of soaks in this folder: those with the mark that start gives
# them, and those of the load's group that have the load's name, since the group's number
# may have been reused. stress-ng's workers overwrite their environment, and with it the mark.
left() {
	{
		grep -lzsxF "SOAK_GATE=$dir" /proc/[0-9]*/environ
		[ ! -e "$dir/load.pid" ] || grep -lsE "^[0-9]+ \(${load%% *}.*\) [^Z] [0-9]+ $(<"$dir/load.pid") " /proc/[0-9]*/stat
	} | cut -d/ -f3 || true
}

# kill_left kills these processes and returns when none is left.
kill_left() {
	local i pids
	for ((i = 0; i < 500; i++)); do
		pids=$(left)
		if [ -z "$pids" ]; then
			rm -f "$dir/load.pid"
			return
		fi
		kill -KILL $pids 2>/dev/null || true # they may have ended
		sleep 0.02
	done
	fail "processes of a soak do not exit:" $pids
}

# start starts a command in a folder, in the background and marked for left. Without job
# control the shell has SIGINT ignored there. The lock is not passed on: it ends with this shell.
start() {
	local in=$1
	shift
	env --default-signal=INT -C "$in" SOAK_GATE="$dir" GOFLAGS="${GOFLAGS:+$GOFLAGS }-count=1" "$@" </dev/null 9>&- &
}

# stop ends the current run, which has a minute to clean up, and its load.
run=
stop() {
	if [ "$run" ]; then
		kill -INT "$run" 2>/dev/null || true
		wait "$run" 2>/dev/null || true
		run=
	fi
	kill_left
}

# once makes one run. Nothing is recorded if it is interrupted or the load exits early.
once() {
	local what=$1 n=$2 clone=$home/clone log=$home/${1//[^a-z]/-}-$2.log status=0 begin load_pid seconds passed failed skipped
	echo "$what $n: $log" >&2
	rm -rf "$clone"
	git clone --quiet --no-checkout . "$clone"
	git -C "$clone" checkout --quiet --detach "$commit"
	start / setsid $load
	load_pid=$!
	disown # it is killed, which the shell need not report
	echo "$load_pid" >"$dir/load.pid"
	begin=$SECONDS
	start "$clone" timeout --signal=INT --kill-after=1m "$deadline" $what >"$log" 2>&1
	run=$!
	wait "$run" || status=$?
	run= seconds=$((SECONDS - begin))
	kill -0 "$load_pid" 2>/dev/null || fail "the load exited early: $load"
	stop
	read -r passed failed skipped < <(awk '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5 }
		END { print p + 0, f + 0, s + 0 }' "$log")
	printf '%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n' "$what" "$n" "$status" "$seconds" "$passed" "$failed" "$skipped" "$load, $machine" >>"$record"
	echo "$what $n: exit $status, $seconds s, $passed passed, $failed failed, $skipped skipped" >&2
}

# runs prints how many runs of a command are recorded; with "passed" only those in which
# tests ran and none failed.
runs() {
	awk -F '\t' -v what="$1" -v only="${2-}" '$1 == what && (only == "" || $3 == 0 && $5 > 0 && $6 == 0) { n++ } END { print n + 0 }' "$record"
}

# failed_tests prints the failed tests that tally lists in a log.
failed_tests() {
	awk '/^failed:$/ { listed = 1; next } !/^  / { listed = 0 } listed' "$1"
}

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
exec 9>"$dir/lock"
flock -n 9 || fail "another soak uses $dir"
trap 'fail "interrupted; the next soak continues"' INT TERM
trap stop EXIT
kill_left
changes=$(git status --porcelain)
[ -z "$changes" ] || fail "changes are not committed:"$'\n'"$changes"
commit=$(git rev-parse HEAD)
home=$dir/${commit:0:12} record=$dir/${commit:0:12}/runs.tsv
mkdir -p "$home"
touch "$record"
machine="$(nproc) x $(sed -n '/^model name/ { s/.*: //p; q }' /proc/cpuinfo), $(awk '/^MemTotal/ { printf "%d", $2 / 2^20 }' /proc/meminfo) GB, Linux $(uname -r), $(go env GOVERSION)"

while ((n = $(runs "make test") + 1, n <= tests)); do once "make test" "$n"; done
while ((n = $(runs .ci/run) + 1, n <= ci)); do once .ci/run "$n"; done

printf '%-12s %5s %8s %7s %7s %8s\n' run exit seconds passed failed skipped
bad=0
while IFS=$'\t' read -r what n status seconds passed failed skipped on; do
	printf '%-12s %5s %8s %7s %7s %8s\n' "$what $n" "$status" "$seconds" "$passed" "$failed" "$skipped"
	if ((status != 0 || failed > 0 || passed == 0)); then
		bad=1 log=$home/${what//[^a-z]/-}-$n.log
		echo "$what $n failed, see $log"
		failed_tests "$log"
	fi
done <"$record"
echo "make test: $(runs "make test" passed) of $tests"
echo ".ci/run: $(runs .ci/run passed) of $ci"
echo "commit $commit, load $load, on $machine"
exit $bad
