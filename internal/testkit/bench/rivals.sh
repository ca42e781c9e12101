#!/bin/sh
# Builds the programs that the agent is compared with, where DIR lacks them. below takes
# about ten minutes, and needs libelf-dev and clang-16. What cannot be built is not measured.
#
#	rivals.sh DIR
set -u
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
export GOWORK=off GOFLAGS=

node_exporter() {
	GOBIN=$dir go install github.com/prometheus/node_exporter@v1.9.1
}

# cAdvisor is a main over its library, as a module of its own so that none of it gets into
# quell's. The files end with .txt, because a go.mod would hide its folder from Go's tools.
cadvisor() (
	set -e
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	for file in go.mod go.sum main.go; do
		cp "$here/testdata/cadvisor/$file.txt" "$tmp/$file"
	done
	cd "$tmp"
	go build -o "$dir/cadvisor" .
)

below() (
	set -e
	# Debian's clang-14 fails on its BPF programs.
	! command -v clang-16 >/dev/null || export CLANG="$(command -v clang-16)"
	timeout 40m cargo install below --version 0.9.0 --locked --root "$dir"
	mv "$dir/bin/below" "$dir/below"
)

for name in node_exporter cadvisor below; do
	if [ ! -e "$dir/$name" ]; then
		echo "building $name" >&2
		$name >&2 || echo "$name: not built" >&2
	fi
done
