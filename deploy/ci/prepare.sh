#!/bin/sh
# Install what tests/debian and tests/console need: nginx, promtool and Chromium, from Debian. Does nothing where all are there.
set -eu
command -v nginx >/dev/null && command -v promtool >/dev/null && command -v chromium >/dev/null && exit 0
as_root=$([ "$(id -u)" = 0 ] || echo sudo)
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q
$as_root apt-get install -y -q --no-install-recommends nginx prometheus chromium fonts-dejavu-core
