#!/bin/sh
# Prove a card in one command, on a machine with one NVIDIA GPU and a ready environment (.venv):
#
#     sh deploy/gpu/check.sh [--only a,b] [--device cuda|cpu] [--quick] [--base FOLDER] [--out FOLDER]
#
# Parts, most important first. Each prints its tables and writes its JSON (FOLDER/a-kernels.json) as soon as it ends.
#   a kernels    LoRA kernels against float32 matrix products: ranks 8 to 128, up to 8,192 tokens;
#                on Hopper cards with Tenora's configuration and with vLLM's own
#   b parity     answers against transformers and PEFT: bfloat16, ranks 16 and 64, prompts of 8 to 8,192 tokens
#   c overhead   tokens/s with LoRA off, on and unused, and with 1 to 64 adapters: Tenora and vLLM in turn
#   d cold       adapters loaded during a stream, one by one and three at once: Tenora and vLLM in turn
#   e quantised  as b, with the base in fp8 (a CPU only gets its rounded weights)
#
# The base is a random one of Llama 3.2 1B's shape, unless --base names another. --quick takes the demo's base and small
# sizes: it shows that every part runs. The exit code is 1 if a part failed.
# Not run on a GPU yet; on a CPU: deploy/gpu/check.sh --device cpu --quick.
set -eu

only=a,b,c,d,e out=gpu-check device=cuda quick="" base=""
while [ $# -gt 0 ]; do
    case $1 in
    --only) only=$2 && shift 2 ;;
    --device) device=$2 && shift 2 ;;
    --base) base=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --quick) quick=--quick && shift ;;
    *)
        echo "check.sh: $1 is not an option. Use --only, --device, --quick, --base and --out." >&2
        exit 2
        ;;
    esac
done
for part in $(echo "$only" | tr , ' '); do
    case $part in
    a | b | c | d | e) ;;
    *)
        echo "check.sh: There is no part $part. Use letters from a to e, separated by commas." >&2
        exit 2
        ;;
    esac
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
base=${base:+$(cd "$base" && pwd)}
cd "$(dirname "$0")/../.."
if [ ! -x .venv/bin/python ]; then
    echo "check.sh: There is no environment in .venv. Make it with 'make environment DEVICE=gpu'." >&2
    exit 2
fi
if [ "$device" = cuda ]; then
    nvidia-smi >"$out/nvidia-smi.txt" || {
        echo "check.sh: nvidia-smi finds no GPU. Use --device cpu --quick on a machine without one." >&2
        exit 2
    }
fi

# The tables are on stdout, and all else in PART.log.
export VLLM_LOGGING_STREAM=ext://sys.stderr
failed=""
for part in $(echo "$only" | tr , ' '); do
    echo "== $part"
    # shellcheck disable=SC2086  # $quick is one option or none
    .venv/bin/python -m app.lab.bench.card run "$part" --out "$out" --device "$device" $quick ${base:+--base "$base"} \
        2>"$out/$part.log" || failed="$failed $part"
done
.venv/bin/python -m app.lab.bench.card show "$out"
echo "results: $out"
if [ -n "$failed" ]; then
    for part in $failed; do echo "failed: $part (see $out/$part.log)" >&2; done
    exit 1
fi
