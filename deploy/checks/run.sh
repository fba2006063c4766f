#!/bin/sh
# Check the files of containers and of what runs around them: every other script of this folder, in the order of its
# names. `make containers` runs it. It needs the environment, nginx and promtool (deploy/ci/prepare.sh).
set -eu
cd "$(dirname "$0")/../.."
export PATH="$PWD/.containers/tools/bin:$PWD/.venv/bin:$PATH"
for check in deploy/checks/*.sh; do
    [ "$check" = deploy/checks/run.sh ] && continue
    began="$(date +%s)"
    sh "$check"
    echo "$(basename "$check" .sh): passed in $(($(date +%s) - began)) s"
done
