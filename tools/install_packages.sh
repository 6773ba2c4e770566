#!/usr/bin/env bash
# install_packages.sh GROUP…: installs through apt what is missing of the named groups: build, test, demo, fetch, clients,
# lint, tidy, fuzz, cross. Asks nothing, and does nothing when all of it is there. Without apt it says what is needed and fails.
set -euo pipefail

# What must be there, how to see that it is (a command, a pkg-config module, a header, …), and its Debian package.
needs() {
  case $1 in
    build) cat <<'END'
command c++ g++
command make make
command cmake cmake
command ninja ninja-build
command pkg-config pkg-config
command git git
module fmt libfmt-dev
module spdlog libspdlog-dev
module nlohmann_json nlohmann-json3-dev
module CLI11 libcli11-dev
module libpcre2-8 libpcre2-dev
module libutf8proc libutf8proc-dev
module libedit libedit-dev
module openssl libssl-dev
header boost/beast.hpp libboost-dev
module gtest libgtest-dev
module benchmark libbenchmark-dev
END
      ;;
    test) printf '%s\n' 'command python3 python3' 'command xz xz-utils' 'command gnuplot gnuplot-nox' ;;
    demo) printf '%s\n' 'command python3 python3' ;;
    fetch) printf '%s\n' 'command python3 python3' 'python pip python3-pip' ;;
    clients) printf '%s\n' 'command python3 python3' 'python ensurepip python3-venv' 'command curl curl' ;;
    lint) printf '%s\n' 'command python3 python3' 'command clang-format clang-format' ;;
    tidy) printf '%s\n' 'command clang-tidy clang-tidy' ;;
    fuzz) printf '%s\n' 'command clang++ clang' 'runtime clang++ libclang-rt-dev' ;;
    cross)
      case $(uname -m) in
        aarch64 | arm64) printf '%s\n' 'command x86_64-linux-gnu-g++ g++-x86-64-linux-gnu' 'command qemu-x86_64 qemu-user' ;;
        *) printf '%s\n' 'command aarch64-linux-gnu-g++ g++-aarch64-linux-gnu' 'command qemu-aarch64 qemu-user' ;;
      esac ;;
    *) echo "install_packages.sh: no group '$1'" >&2; exit 2 ;;
  esac
}

is_there() {
  case $1 in
    command) command -v "$2" ;;
    module) pkg-config --exists "$2" ;;
    header) echo "#include <$2>" | c++ -E -x c++ - ;;
    python) python3 -m "$2" --version ;;
    runtime) compgen -G "$("$2" -print-resource-dir)/lib/*/libclang_rt.fuzzer*" ;;
  esac >/dev/null 2>&1
}

missing=() packages=() optional=()
while read -r kind name package; do
  is_there "$kind" "$name" || { missing+=("$name") packages+=("$package"); }
done < <(for group in "$@"; do needs "$group"; done)
[ ${#missing[@]} -gt 0 ] || exit 0

# They make building faster, and are installed only together with what is needed.
for name in ccache mold; do command -v $name >/dev/null || optional+=("$name"); done

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
  {
    echo "fathom needs, and cannot install by itself (no apt-get, or neither root nor a sudo that asks nothing):"
    for i in "${!missing[@]}"; do echo "  ${missing[$i]}  (Debian: ${packages[$i]})"; done
    echo "On Debian or Ubuntu: sudo apt-get install ${packages[*]}"
  } >&2
  exit 1
fi

echo "installing ${packages[*]} ${optional[*]}" >&2
apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@" >/dev/null
}
apt_get update
apt_get install --no-install-recommends "${packages[@]}"
[ ${#optional[@]} -eq 0 ] || apt_get install --no-install-recommends "${optional[@]}" || true
