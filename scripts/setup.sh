#!/usr/bin/env bash
# Makes .venv with exactly what requirements.lock says, and Meander itself in editable form. Does nothing, and
# needs no network, when that has been done for the same lock file and pyproject.toml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/packages.sh

venv=.venv
stamp=$venv/.meander-setup

digest() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi
}
# By content, not by date: a checkout that touches the files must not send an offline machine to the network.
wanted=$(cat requirements.lock pyproject.toml | digest | cut -d ' ' -f 1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -x "$venv/bin/python" ]; then
    touch "$stamp"
    exit 0
fi

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local name
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
        if command -v "$name" >/dev/null 2>&1 && new_enough "$name"; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

have_uv() { command -v uv >/dev/null 2>&1; }

make_venv() {
    local python
    if ! python=$(find_python); then
        if have_uv; then
            uv venv --quiet --python '>=3.11' "$venv"
            return
        fi
        echo "error: Meander needs Python 3.11 or newer; $(python3 --version 2>/dev/null || echo 'no python3') is here." >&2
        echo "Install one (for example: sudo apt-get install python3.11 python3.11-venv), or set PYTHON to its path." >&2
        exit 1
    fi
    if have_uv; then
        uv venv --quiet --python "$python" "$venv"
        return
    fi
    "$python" -m venv "$venv" >/dev/null 2>&1 && return
    # Debian and Ubuntu ship Python without ensurepip.
    rm -rf "$venv"
    local version
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "Python $version has no venv module: installing it with the system's package manager ..." >&2
    if ! install_one "python$version-venv" python3-venv || ! "$python" -m venv "$venv"; then
        rm -rf "$venv"
        echo "error: $python cannot make a virtual environment. Install python$version-venv, then run the same command again." >&2
        exit 1
    fi
}

[ -x "$venv/bin/python" ] && new_enough "$venv/bin/python" || make_venv
rm -f "$stamp"
echo "Installing what requirements.lock names into $venv ..." >&2
if have_uv; then
    uv pip install --quiet --python "$venv/bin/python" --require-hashes -r requirements.lock
    uv pip install --quiet --python "$venv/bin/python" --no-deps -e .
else
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip --upgrade >/dev/null
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -e .
fi
printf '%s\n' "$wanted" >"$stamp"
