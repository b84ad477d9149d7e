#!/usr/bin/env bash
# Builds every policy as a component and leaves it as target/policies/NAME.wasm. Quick when nothing changed.
#
#   guests/build.sh              the built-in policies and the examples
#   guests/build.sh --builtin    the built-in policies alone
#   guests/build.sh --sizes      and the size of each
#
# With a wasm target for the toolchain it is used. Without one, Debian's compiler and library source do (rustc-web and
# rust-web-src), with the linker of the toolchain: its own compiler can't build Debian's library.
set -euo pipefail
cd "$(dirname "$0")"

builtin=(lease-policy pod-manifest warm-replay)
examples=(most-recent)
only_builtin='' sizes=''
for argument in "$@"; do
    case $argument in
    --builtin) only_builtin=1 ;;
    --sizes) sizes=1 ;;
    *)
        echo "error[usage]: unknown argument $argument" >&2
        echo "help: guests/build.sh [--builtin] [--sizes]" >&2
        exit 2
        ;;
    esac
done

command -v cargo >/dev/null && command -v rustc >/dev/null || {
    echo "error[toolchain]: no Rust toolchain is on PATH" >&2
    echo "help: install one from https://rustup.rs" >&2
    exit 1
}
sysroot=$(rustc --print sysroot)
host=$(rustc -vV | sed -n 's/^host: //p')
if [ ! -d "$sysroot/lib/rustlib/wasm32-unknown-unknown/lib" ]; then
    if [ ! -x /usr/bin/rustc ] || [ ! -d /usr/lib/rustlib/src/rust/library ]; then
        echo "error[toolchain]: this toolchain ($(rustc --version)) has no target wasm32-unknown-unknown" >&2
        echo "help: rustup target add wasm32-unknown-unknown" >&2
        echo "help: or, on Debian, apt-get install rustc-web rust-web-src" >&2
        exit 1
    fi
    export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_BUILD_STD=std,panic_abort
    export PATH="$sysroot/lib/rustlib/$host/bin:$PATH" # wasm-component-ld and rust-lld
fi
# Settings of the caller that would send the components elsewhere, or build them for a foreign processor.
unset CARGO_TARGET_DIR CARGO_BUILD_TARGET
# A panic names its place. Without this, that is a path of the machine that built it, and the same sources would have
# another digest in every folder.
RUSTFLAGS="--remap-path-prefix=$(dirname "$PWD")=warmhold --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
export RUSTFLAGS

what=()
for name in "${builtin[@]}"; do what+=(-p "$name"); done
if [ -z "$only_builtin" ]; then
    for name in "${examples[@]}"; do what+=(-p "$name"); done
    what+=(-p hostile --examples)
fi
cargo build --release --locked --lib "${what[@]}"

from=../target/guests/wasm32-unknown-unknown/release
to=../target/policies
mkdir -p "$to"
# A reader never sees half a component; one that is as it was keeps its time, so that nothing is built again for it.
install_component() {
    local source=$1 target=$to/$2.wasm
    if ! cmp -s "$source" "$target"; then
        local fresh
        fresh=$(mktemp "$to/.$2.XXXXXX")
        cp "$source" "$fresh"
        chmod 644 "$fresh"
        mv -f "$fresh" "$target"
    fi
    if [ -n "$sizes" ]; then printf '%8d  %s\n' "$(stat -c %s "$target")" "$2"; fi
}
for name in "${builtin[@]}"; do install_component "$from/${name//-/_}.wasm" "$name"; done
if [ -z "$only_builtin" ]; then
    for name in "${examples[@]}"; do install_component "$from/${name//-/_}.wasm" "$name"; done
    for source in ../examples/policies/hostile/components/*.rs; do
        name=$(basename "$source" .rs)
        install_component "$from/examples/${name//-/_}.wasm" "$name"
    done
fi
