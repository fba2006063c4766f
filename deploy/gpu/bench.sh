#!/bin/sh
# All benchmarks of deploy/benchmarks/RESULTS.md on a machine with one NVIDIA GPU, in one command:
#
#     sh deploy/gpu/bench.sh [FOLDER]
#
# It makes the environment (.venv, from deploy/locks/gpu.txt), a base of Llama 3.1 8B's shape with random bfloat16
# weights where none is given, and adapters in PEFT's format; it measures each workload with Tenora and with vLLM's own
# server, and leaves tables (.txt), raw samples with machine, versions and commit (.json), and plots (.png) in FOLDER.
#
# NOT TRIED YET as a whole: by hand, on an H100, the base, its adapters and a short round of `coldload` were, in an
# environment put together otherwise (deploy/benchmarks/RESULTS.md, "On a GPU"). Each workload is the same command that
# runs on a CPU; what is left to see is whether memory and the times below fit a given card. By arithmetic: 150 GB of
# disk (the base 16 GB, an adapter 0.17 GB at rank 16 and 0.67 GB at rank 64, kept unchanged, in the store and in the
# server's disk cache).
#
# Settings, by environment:
#   PYTHON    python3.11
#   BASE      folder of a Llama, with its tokenizer; empty: the random one
#   DURATION  seconds of each timed part (default 120)
#   ROUNDS    rounds of each server (default 5)
#   WORKLOADS which to run (default: overhead adapters coldload starvation fairness)
#   QUICK     1: one short round of each, to see that it runs
set -eu

out=${1:-gpu-results}
mkdir -p "$out"
out=$(cd "$out" && pwd)
base=${BASE:+$(cd "$BASE" && pwd)}
python=${PYTHON:-python3.11}
seconds=${DURATION:-120}
rounds=${ROUNDS:-5}
workloads=${WORKLOADS:-overhead adapters coldload starvation fairness}
TENORA_HOME=${TENORA_HOME:-$out/home}
# Of both sides: the base's own context length would take memory that no request here needs.
TENORA_ENGINE__MAX_MODEL_LEN=${TENORA_ENGINE__MAX_MODEL_LEN:-8192}
export TENORA_HOME TENORA_ENGINE__MAX_MODEL_LEN
mkdir -p "$TENORA_HOME"
cd "$(dirname "$0")/../.."

command -v nvidia-smi >/dev/null || {
    echo "bench.sh: nvidia-smi is missing here. Run this on a machine with an NVIDIA GPU." >&2
    exit 1
}
make environment DEVICE=gpu PYTHON="$python"
nvidia-smi >"$out/nvidia-smi.txt"

if [ -z "$base" ]; then
    base=$(.venv/bin/python -m app.lab.bench.big_base "$TENORA_HOME")
fi
echo "base: $base"

# Both sides of this one are on the card at the same time, each with less than half of its memory.
half='TENORA_ENGINE__EXTRA_ARGS={"gpu_memory_utilization": 0.44}'

# Runs one workload; its table goes to the screen and to a file. A workload that fails does not end the others.
failed=""
measure() {
    name=$1
    shift
    echo "== $name"
    if .venv/bin/tenora server bench "$@" --out "$out/$name.json" >"$out/$name.txt" 2>"$out/$name.log"; then
        cat "$out/$name.txt"
    else
        failed="$failed $name"
        tail -n 20 "$out/$name.log" >&2
    fi
}

quick=""
if [ "${QUICK:-0}" = 1 ]; then
    quick="--quick"
    rounds=1
fi

for workload in $workloads; do
    # shellcheck disable=SC2086  # $quick is one option or none
    case $workload in
    overhead)
        measure overhead overhead --base "$base" $quick
        ;;
    adapters)
        measure adapters-rank-16 adapters --base "$base" --ranks 16 --n 1,8,32,100 --seconds "$seconds" \
            --rounds "$rounds" --setting "$half" $quick
        measure adapters-rank-64 adapters --base "$base" --ranks 64 --n 1,8,16 --seconds "$seconds" \
            --rounds "$rounds" --setting "$half" $quick
        ;;
    coldload)
        for rank in 16 64; do
            measure "coldload-rank-$rank" coldload --base "$base" --adapter-rank "$rank" --rounds "$rounds" $quick
        done
        ;;
    starvation)
        measure starvation starvation --base "$base" --adapter-rank 16 --rounds "$rounds" $quick
        ;;
    fairness)
        measure fairness fairness --base "$base" --adapter-rank 16 --rounds "$rounds" --seconds "$seconds" $quick
        measure fairness-4-slots fairness --base "$base" --adapter-rank 16 --rounds "$rounds" \
            --seconds "$seconds" --slots 4 $quick
        ;;
    *)
        echo "bench.sh: WORKLOADS has $workload. Choose from overhead adapters coldload starvation fairness." >&2
        exit 2
        ;;
    esac
done

echo "results: $out"
if [ -n "$failed" ]; then
    echo "failed:$failed" >&2
    exit 1
fi
