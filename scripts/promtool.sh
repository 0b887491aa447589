#!/usr/bin/env bash
# Gets promtool, Prometheus' own checker of metrics, into .servers/: unpacked from the system's package and not installed, which would start
# a Prometheus. Says what is missing, and succeeds all the same: the test that needs it is skipped then.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/packages.sh

command -v promtool >/dev/null 2>&1 && exit 0
[ -x .servers/promtool ] && exit 0
mkdir -p .servers

unpack() {
    local folder=$1
    (cd "$folder" && { apt-get download -qq prometheus || { can_install && as_root apt-get update -qq && apt-get download -qq prometheus; }; }) >&2
    dpkg-deb -x "$folder"/prometheus_*.deb "$folder/unpacked"
    install "$folder/unpacked/usr/bin/promtool" .servers/promtool
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
if ! { command -v apt-get && command -v dpkg-deb; } >/dev/null 2>&1 || ! unpack "$scratch"; then
    echo "warning: no promtool on this machine, and it cannot be had; the test that needs it is skipped" >&2
fi
