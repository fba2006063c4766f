#!/bin/sh
# Helm accepts the chart with each of its files of values. tests/deploy reads what it renders.
set -eu
helm=.clients/helm/bin/helm
needed="--set settings.TENORA_BASE_MODEL=/models/base --set settings.TENORA_STORE_URL=s3://bucket/adapters"
for values in deploy/helm/tenora/values*.yaml; do
    # Helm mentions each link of the chart, so its output is shown after a failure only.
    # shellcheck disable=SC2086
    if ! said="$($helm lint --quiet --strict deploy/helm/tenora -f "$values" $needed 2>&1)"; then
        echo "$said" >&2
        exit 1
    fi
done
