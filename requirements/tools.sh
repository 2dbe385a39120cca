#!/usr/bin/env bash
# Unpack promtool, prometheus and amtool from the distribution's packages into .venv/tools, for the tests
# of alert rules and scrape settings. Needs Debian or Ubuntu and no root; installs and starts nothing.
# Never fails: tests that miss a tool skip and say so.
set -uo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/.venv/tools
packages=(prometheus prometheus-alertmanager)
hint="install the packages ${packages[*]}, or put promtool, prometheus and amtool on PATH"

without() {
    echo "== tests that need promtool, prometheus or amtool will be skipped: $1. To run them, $hint"
    exit 0
}

missing=0
for tool in promtool prometheus amtool; do
    command -v "$tool" >/dev/null || [ -x "$tools/usr/bin/$tool" ] || missing=1
done
[ $missing = 0 ] && exit 0
command -v apt-get >/dev/null && command -v dpkg >/dev/null || without "this is not Debian or Ubuntu"

work=$(mktemp -d) || without "no temporary folder"
trap 'rm -rf "$work"' EXIT
cd "$work" || without "no temporary folder"
mkdir -p lists/partial cache/archives/partial
# As root, apt would drop to a user that cannot write here, and warn of it.
apt=(timeout 60 apt-get -qq -o APT::Sandbox::User=root -o Acquire::http::Timeout=10 -o Acquire::Retries=1)
private=(-o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache")

echo "== unpacking ${packages[*]} into .venv/tools (30 MB to download)"
# Images often come without package lists; they are then read into the temporary folder, for this once.
"${apt[@]}" download "${packages[@]}" >/dev/null 2>&1 ||
    { "${apt[@]}" "${private[@]}" update && "${apt[@]}" "${private[@]}" download "${packages[@]}"; } >/dev/null 2>&1 ||
    without "apt-get could not download ${packages[*]}"
for package in ./*.deb; do
    dpkg -x "$package" unpacked || without "$(basename "$package") could not be unpacked"
done
rm -rf "$tools" && mkdir -p "$tools/usr" && mv unpacked/usr/bin "$tools/usr/" || without ".venv/tools cannot be written"
