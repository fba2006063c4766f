#!/bin/sh
# The compose files are valid, together and alone, with the files of secrets.sh, and say which variables they need.
set -eu
copy="$(mktemp -d)"
trap 'rm -r "$copy"' EXIT
cp deploy/container/compose*.yml deploy/container/secrets.sh "$copy"
sh "$copy/secrets.sh"
for files in "-f $copy/compose.yml" "-f $copy/compose.yml -f $copy/compose.gpu.yml"; do
    # shellcheck disable=SC2086
    TENORA_BASE_MODEL=/models/base compose $files --profile monitoring config --quiet
done
if env -u TENORA_BASE_MODEL compose -f "$copy/compose.yml" config --quiet 2>/dev/null; then
    echo "The compose file does not ask for TENORA_BASE_MODEL." >&2
    exit 1
fi
