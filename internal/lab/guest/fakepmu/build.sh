#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# build.sh HEADERS ARCH OUT: builds fakepmu.ko into the folder OUT.
#   HEADERS  linux-headers-RELEASE of Debian's kernel, with its -common folder
#            beside it and linux-kbuild of this machine in ../../lib
#   ARCH     amd64 or arm64
# Needs make and gcc; for arm64 on another machine gcc-aarch64-linux-gnu.
set -eu
src=$(cd "$(dirname "$0")" && pwd)
headers=$(cd "$1" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
common=$(echo "$headers" | sed 's/-[a-z]*-[a-z0-9]*$/-common/')
cp "$src/fakepmu.c" "$out/"
echo 'obj-m := fakepmu.o' >"$out/Makefile"
cross=
if [ "$2" = arm64 ] && [ "$(uname -m)" != aarch64 ]; then
	cross='ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu-'
fi
# The folder's own Makefile includes the common one by where it is installed.
# shellcheck disable=SC2086 # cross is words
make -s -C "$headers" -f "$common/Makefile" M="$out" $cross modules
