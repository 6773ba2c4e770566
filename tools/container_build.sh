#!/usr/bin/env bash
# What the Dockerfile runs, as root in a bare Debian, in two steps:
#   container_build.sh build PREFIX   installs the packages that building needs, builds, and installs fathom to PREFIX
#   container_build.sh run PREFIX     in the final image, with PREFIX copied there: installs the packages that the program
#                                     needs to run, and makes the user fathom
set -euo pipefail

step=${1:-} prefix=${2:-}
if [ -z "$prefix" ]; then
  echo "container_build.sh: expected 'build PREFIX' or 'run PREFIX', got '$*'" >&2
  exit 2
fi
share=$prefix/share/fathom

build() {
  cd "$(dirname "$0")/.."
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends make >/dev/null
  make --no-print-directory build
  mkdir -p "$prefix/bin" "$share"
  install build/fathom "$prefix/bin/fathom"
  cp -r models "$share/models"
  install tools/container_build.sh "$share/container_build.sh"
  # The packages of the libraries that the program loads. dpkg knows some files by their path before /usr was merged.
  ldd build/fathom | awk '$2 == "=>" {print $3}' | while read -r library; do
    real=$(readlink -f "$library")
    dpkg -S "$real" 2>/dev/null || dpkg -S "${real#/usr}"
  done | cut -d: -f1 | sort -u >"$share/packages"
}

run() {
  apt-get -qq update
  xargs -a "$share/packages" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends >/dev/null
  rm -rf /var/lib/apt/lists/*
  useradd --create-home --shell /usr/sbin/nologin fathom
  "$prefix/bin/fathom" --version
}

case $step in
  build | run) "$step" ;;
  *) echo "container_build.sh: there is no step '$step': build or run" >&2; exit 2 ;;
esac
