#!/bin/sh
# The compose files are valid, together and alone, and say which variables they need.
set -eu
folder=deploy/container
for files in "-f $folder/compose.yml" "-f $folder/compose.yml -f $folder/compose.gpu.yml"; do
    # shellcheck disable=SC2086
    TENORA_BASE_MODEL=/models/base compose $files --profile monitoring config --quiet
done
if env -u TENORA_BASE_MODEL compose -f $folder/compose.yml config --quiet 2>/dev/null; then
    echo "The compose file does not ask for TENORA_BASE_MODEL." >&2
    exit 1
fi
