#!/usr/bin/env bash
# Prints the home of a Java that can run Spark (17 or 21); installs one where that is possible; otherwise says
# what to install. Nothing but the path goes to standard output.
#
#   scripts/java.sh             find or install
#   scripts/java.sh --no-install
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./packages.sh

rejected=""

# Spark needs the module jdk.incubator.vector, which cut-down runtimes leave out: a version number alone is
# no proof. Asking the runtime to start with it answers both questions in one start.
suits() {
    local home=$1 answer version
    [ -x "$home/bin/java" ] || return 1
    if ! answer=$("$home/bin/java" --add-modules=jdk.incubator.vector -version 2>&1); then
        rejected="$rejected  $home: does not start with the module jdk.incubator.vector
"
        return 1
    fi
    version=$(printf '%s\n' "$answer" | sed -n 's/.* version "\([0-9][0-9]*\).*/\1/p' | head -n 1)
    case "$version" in
        17 | 21) return 0 ;;
    esac
    rejected="$rejected  $home: version ${version:-unknown}
"
    return 1
}

home_of_java_on_path() {
    command -v java >/dev/null 2>&1 || return 0
    { java -XshowSettings:properties -version 2>&1 || true; } | sed -n 's/^ *java\.home = //p' | head -n 1
}

candidates() {
    [ -z "${JAVA_HOME:-}" ] || printf '%s\n' "$JAVA_HOME"
    home_of_java_on_path
    local place
    for place in /usr/lib/jvm/* /usr/java/* /opt/java/* /opt/jdk* /opt/homebrew/opt/openjdk@* /usr/local/opt/openjdk@* \
        "$HOME"/.sdkman/candidates/java/* "$HOME"/.jdks/* /Library/Java/JavaVirtualMachines/*/Contents/Home; do
        [ -d "$place" ] && printf '%s\n' "$place"
    done
    return 0
}

find_java() {
    local home
    rejected=""
    while IFS= read -r home; do
        if [ -n "$home" ] && suits "$home"; then
            printf '%s\n' "$home"
            return 0
        fi
    done < <(candidates | awk '!seen[$0]++')
    return 1
}

find_java && exit 0

if [ "${1:-}" != "--no-install" ] && can_install; then
    echo "No Java 17 or 21 found: installing one with the system's package manager ..." >&2
    install_one openjdk-17-jre-headless openjdk-21-jre-headless java-17-openjdk-headless java-21-openjdk-headless || true
    find_java && exit 0
fi

{
    echo "error: Spark needs Java 17 or 21, and none was found."
    [ -z "$rejected" ] || printf 'Found, but not usable:\n%s' "$rejected"
    echo "Install one, then run the same command again:"
    echo "  Debian, Ubuntu   sudo apt-get install openjdk-17-jre-headless   (or openjdk-21-jre-headless)"
    echo "  Fedora, RHEL     sudo dnf install java-21-openjdk-headless      (or java-17-openjdk-headless)"
    echo "  macOS            brew install openjdk@21"
    echo "Or set JAVA_HOME to the home of one that is installed elsewhere."
} >&2
exit 1
