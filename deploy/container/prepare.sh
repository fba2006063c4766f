#!/bin/sh
# Install what `make containers-run` needs, from Debian: programs that build and run containers without a registry.
set -eu
command -v podman >/dev/null && command -v buildah >/dev/null && command -v debootstrap >/dev/null && exit 0
as_root=$([ "$(id -u)" = 0 ] || echo sudo)
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q
$as_root apt-get install -y -q --no-install-recommends buildah podman runc iptables netavark aardvark-dns catatonit debootstrap
