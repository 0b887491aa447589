# Sourced by the other scripts: how this machine installs a system package.

# True when a package manager is here and may be used without asking for a password.
can_install() {
    command -v apt-get >/dev/null 2>&1 || command -v dnf >/dev/null 2>&1 || return 1
    [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

# install_one NAME...: the first of the named packages that this system has. Standard output stays clean.
install_one() {
    can_install || return 1
    if command -v apt-get >/dev/null 2>&1; then
        as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 || true
        for package in "$@"; do
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >&2 && return 0
        done
    else
        for package in "$@"; do
            as_root dnf install -y -q "$package" >&2 && return 0
        done
    fi
    return 1
}
