#!/bin/sh
# Unpacks container runtimes from Debian's packages into a directory, without installing them:
#
#	runtimes.sh DIRECTORY
#
# Nothing is downloaded twice. The programs need LD_LIBRARY_PATH=DIRECTORY/root/usr/lib/….
set -eu
mkdir -p "$1" && cd "$1"
packages="containerd runc containernetworking-plugins podman conmon golang-github-containers-common golang-github-containers-image
	docker.io tini libgpgme11 libsubid4 libdevmapper1.02.1 libseccomp2 libassuan0 libjson-c5 libslirp0"
[ "$(cat root/done 2>/dev/null)" = "$packages" ] && exit 0
rm -rf root
apt-get download -qq $packages 2>/dev/null
mkdir root
for package in *.deb; do dpkg -x "$package" root; done
echo "$packages" >root/done
