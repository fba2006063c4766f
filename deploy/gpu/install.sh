#!/bin/sh
# Install Tenora from this bundle into FOLDER, without a network and without a Python of the system:
#
#     sh install.sh [--no-proof] FOLDER
#
# FOLDER is a new folder, or a git checkout whose deploy/locks/gpu.txt is the bundle's lock. A checkout keeps its files.
# The environment is FOLDER/.venv, its Python is FOLDER/.tools/python. A second run with nothing changed does nothing.
# Every file of the bundle is checked before FOLDER is touched. If a later step fails, what was made is removed.
#
# --no-proof  do not import vLLM at the end
set -eu
unset PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE PIP_REQUIRE_VIRTUALENV
LC_ALL=C
export LC_ALL

needed_glibc="@GLIBC@"
lock="deploy/locks/gpu.txt"

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

digest_of() {
    set -- "$(sha256sum <"$1")"
    echo "${1%% *}"
}

# A wheel must have a hash that the lock names; the manifest alone does not say so.
check_wheel() {
    case $1 in
    wheels/*.whl)
        case $locked in
        *"sha256:$2"*) ;;
        *) fail "$1 does not have a hash that lock.txt names. Copy the bundle again." ;;
        esac
        ;;
    esac
}

check_files() {
    [ -f "$bundle/manifest.sha256" ] || fail "manifest.sha256 is missing. Copy the bundle again."
    [ -f "$bundle/lock.txt" ] || fail "lock.txt is missing. Copy the bundle again."
    locked=$(cat "$bundle/lock.txt")
    while read -r digest name || [ -n "$digest" ]; do
        [ -f "$bundle/$name" ] || fail "$name is missing. Copy it again."
        [ "$(digest_of "$bundle/$name")" = "$digest" ] ||
            fail "$name is broken: its SHA-256 is not the one in manifest.sha256. Copy it again."
        check_wheel "$name" "$digest"
    done <"$bundle/manifest.sha256"
}

check_target() {
    if [ -e "$work" ]; then
        fail "$work is from an install that still runs or was killed. If none runs, remove $made, then run this again."
    elif [ "$checkout" = yes ]; then
        check_checkout
    else
        check_new_folder
    fi
}

check_new_folder() {
    for entry in "$target"/* "$target"/.[!.]*; do
        [ ! -e "$entry" ] || fail "$target is not empty and not a git checkout. Name a new folder."
    done
}

has_same_lock() {
    [ -f "$target/$lock" ] && [ "$(digest_of "$target/$lock")" = "$(digest_of "$bundle/lock.txt")" ]
}

check_checkout() {
    has_same_lock ||
        fail "$target/$lock is not the lock of this bundle. Check out the commit of the bundle, or name a new folder."
    for entry in "$target/.venv" "$target/.tools/python"; do
        [ ! -e "$entry" ] || fail "$entry is not from this bundle. Remove it, then run this again."
    done
}

# Split files are joined in the work folder; the others are read where they are.
join_pieces() {
    mkdir -p "$work/wheels"
    [ -f "$bundle/joined.sha256" ] || return 0
    while read -r digest name; do
        cat "$bundle/$name".part* >"$work/$name" || fail "$name could not be joined. Is the disk full?"
        [ "$(digest_of "$work/$name")" = "$digest" ] || fail "$name is broken after joining. Copy its pieces again."
        check_wheel "$name" "$digest"
    done <"$bundle/joined.sha256"
}

unpack() {
    archive="$bundle/$1"
    [ -f "$archive" ] || archive="$work/$1"
    mkdir -p "$2"
    tar -xf "$archive" -C "$2" || fail "$1 could not be unpacked. Is the disk full?"
}

unpack_python() {
    unpack python.tar "$target/.tools/python"
    "$python" -I -c '
import platform, sys
found, needed = (tuple(map(int, text.split(".")[:2])) for text in (platform.libc_ver()[1], sys.argv[1]))
sys.exit(found < needed)' "$needed_glibc" ||
        fail "The bundle's Python does not run here. It needs Linux on x86-64, a mounted /proc and glibc $needed_glibc or newer."
}

# Runs a command; its output is shown if it fails.
quietly() {
    sentence=$1
    shift
    "$@" >"$work/log" 2>&1 || {
        tail -n 20 "$work/log" >&2
        fail "$sentence"
    }
}

make_environment() {
    quietly "The environment could not be made." "$python" -I -m venv --without-pip "$target/.venv"
    # pip comes with Python and stays outside: the environment holds what the lock names, and nothing else.
    quietly "pip could not be unpacked." "$python" -I -m zipfile -e \
        "$target"/.tools/python/lib/python3.11/ensurepip/_bundled/pip-*.whl "$work/pip"
    pip="$work/pip/pip"
    quietly "The wheels could not be installed; pip's message is above. They need glibc $needed_glibc or newer." \
        "$venv" -I "$pip" --isolated --disable-pip-version-check install --no-index --no-cache-dir \
        --find-links "$bundle/wheels" --find-links "$work/wheels" --require-hashes --no-deps -r "$bundle/lock.txt"
    quietly "Tenora could not be installed into the environment; pip's message is above." \
        "$venv" -I "$pip" --isolated --disable-pip-version-check install --no-index --no-cache-dir \
        --no-deps --no-build-isolation -e "$target/client" -e "$target"
}

# `import vllm` alone passes in broken environments; this name pulls in the model code.
prove_environment() {
    if [ "$proof" = no ]; then
        echo "install.sh: vLLM was not imported, so the environment is not tested (--no-proof)."
        return 0
    fi
    cd "$target"
    quietly "vLLM cannot be imported; its message is above. Fix the cause, or leave this check out with --no-proof." \
        "$venv" -c "from vllm import LLM"
}

# deploy/install.py, which make calls, finds its own stamp and leaves the environment alone.
write_stamps() {
    if has_same_lock; then
        cd "$target"
        "$venv" -c "from deploy import install; install.STAMP.write_text(install.fingerprint('gpu'))"
    fi
    echo "$identity" >"$stamp"
}

remove_made() {
    status=$?
    trap - EXIT
    cd /
    rm -rf "$work"
    if [ "$finished" = no ]; then
        if [ "$checkout" = yes ]; then
            rm -rf "$target/.venv" "$target/.tools/python"
        else
            rm -rf "$target"
        fi
    fi
    exit "$status"
}

proof=yes
if [ "${1-}" = --no-proof ]; then
    proof=no
    shift
fi
case ${1-} in
"" | -*) fail "Usage: sh install.sh [--no-proof] FOLDER" ;;
esac
[ $# = 1 ] || fail "Usage: sh install.sh [--no-proof] FOLDER"
for tool in cat mkdir rm sha256sum tail tar; do
    command -v "$tool" >/dev/null || fail "$tool is missing on this machine. Install it, then run this again."
done
case $0 in
*/*) bundle=$(cd "${0%/*}" && pwd) ;;
*) bundle=$(pwd) ;;
esac
if [ -d "$1" ]; then
    target=$(cd "$1" && pwd)
else
    case $1 in
    /*) target=$1 ;;
    *) target=$(pwd)/$1 ;;
    esac
fi
work=$target/.bundle-work
python=$target/.tools/python/bin/python3.11
venv=$target/.venv/bin/python
stamp=$target/.venv/bundle-stamp
checkout=no
made=$target
if [ -e "$target/.git" ]; then
    checkout=yes
    made=".bundle-work, .venv and .tools/python in $target"
fi

[ -f "$bundle/manifest.sha256" ] || fail "manifest.sha256 is missing. Copy the bundle again."
identity=$(digest_of "$bundle/manifest.sha256")
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$identity" ]; then
    echo "install.sh: $target has this bundle already."
    exit 0
fi
check_files
check_target
finished=no
trap remove_made EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$work"
join_pieces
unpack_python
[ "$checkout" = yes ] || unpack project.tar "$target"
make_environment
prove_environment
write_stamps
finished=yes
echo "install.sh: $target is ready. Run $target/.venv/bin/tenora."
