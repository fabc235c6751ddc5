#!/usr/bin/env bash
# Installs the build into a temporary place and uses it as a stranger would: the README's example as strict C99 through
# pkg-config, the same through CMake, and each public header alone in C99 and C++.
# usage: check_install.sh SOURCE_ROOT BUILD_ROOT
set -euo pipefail

source_root=$1
build_root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# The first block of C in README.md is the example, word for word.
check_readme() {
  sed -n '/^```c$/,/^```$/p' "$source_root/README.md" | sed '1d;/^```$/,$d' >"$work/readme.c"
  diff -u "$source_root/tests/install/hello.c" "$work/readme.c" || fail "README.md's example is not tests/install/hello.c"
}

install_tree() {
  DESTDIR="$work/root" meson install -C "$build_root" --no-rebuild --quiet >"$work/install.log" 2>&1 ||
    { cat "$work/install.log" >&2; fail "meson install"; }
  config=$(find "$work/root" -name kolo.pc)
  [[ -n $config ]] || fail "no kolo.pc was installed"
  library_dir=$(cd "$(dirname "$config")/.." && pwd)
  [[ -e $library_dir/libkolo.so ]] || fail "no libkolo.so beside pkgconfig/ in $library_dir"
}

# A sanitizer's runtime has to be in the program that loads an instrumented library.
sanitizer_flags() {
  local value
  value=$(meson introspect "$build_root" --buildoptions |
    python3 -c 'import json,sys; print(next(o["value"] for o in json.load(sys.stdin) if o["name"] == "b_sanitize"))')
  [[ $value == none ]] || echo "-fsanitize=$value"
}

run_example() {
  local out
  out=$(LD_LIBRARY_PATH=$library_dir "$1") || fail "$1 ended with status $?"
  [[ $out == ok ]] || fail "$1 printed \"$out\" instead of ok"
}

check_pkg_config() {
  export PKG_CONFIG_PATH=$library_dir/pkgconfig PKG_CONFIG_SYSROOT_DIR=$work/root
  local flags
  flags=$(pkg-config --cflags --libs kolo) || fail "pkg-config does not know kolo"
  # shellcheck disable=SC2086  # flags are words
  cc -std=c99 -pedantic -Wall -Wextra -Werror "$source_root/tests/install/hello.c" -o "$work/hello" $flags $sanitize
  run_example "$work/hello"
}

check_cmake() {
  if ! command -v cmake >/dev/null; then
    echo "cmake is not installed: its package was not tried"
    return
  fi
  mkdir "$work/cmake"
  cat >"$work/cmake/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.10)
project(hello C)
find_package(kolo 0.1.0 REQUIRED CONFIG)
add_executable(hello hello.c)
target_link_libraries(hello PRIVATE kolo::kolo)
CMAKE
  cp "$source_root/tests/install/hello.c" "$work/cmake/"
  { cmake -S "$work/cmake" -B "$work/cmake/build" -Dkolo_DIR="$library_dir/cmake/kolo" -DCMAKE_C_FLAGS="$sanitize" &&
    cmake --build "$work/cmake/build"; } >"$work/cmake.log" 2>&1 ||
    { cat "$work/cmake.log" >&2; fail "CMake's find_package(kolo)"; }
  run_example "$work/cmake/build/hello"
}

check_headers() {
  local include header
  include=$(dirname "$(find "$work/root" -path '*/kolo/kolo.h')")
  for header in "$include"/*.h; do
    cc -std=c99 -pedantic -Wall -Wextra -Werror -fsyntax-only -x c "$header" || fail "$header alone, as C99"
    c++ -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -x c++ "$header" || fail "$header alone, as C++"
  done
}

check_readme
install_tree
sanitize=$(sanitizer_flags)
check_headers
check_pkg_config
check_cmake
echo "the installed library works"
