#!/bin/sh
# Prometheus reads its configurations and the alert rules.
set -eu
folder="$(mktemp -d)"
trap 'rm -r "$folder"' EXIT
cp deploy/prometheus/alerts.yml "$folder"
sed "s|/etc/prometheus/|$folder/|; s|/run/secrets/|$folder/|" deploy/container/prometheus.yml >"$folder/prometheus.yml"
: >"$folder/metrics_key"
promtool check config "$folder/prometheus.yml" >/dev/null
