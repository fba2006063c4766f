#!/bin/sh
# Install what tests/debian needs: nginx and promtool, from Debian. Does nothing where both are there.
set -eu
command -v nginx >/dev/null && command -v promtool >/dev/null && exit 0
as_root=$([ "$(id -u)" = 0 ] || echo sudo)
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q
$as_root apt-get install -y -q --no-install-recommends nginx prometheus
