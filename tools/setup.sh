# shellcheck shell=bash
# Sourced by the scripts beside it: finds or installs what building needs, configures and builds.
#
#   kolo_setup [--build-dir DIR] [MESON OPTION...]     DIR is "build" under the top of the tree by default
#
# Returns 0 when the tree is built. On failure it says why on standard error and returns 1.

kolo_top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Prints the Debian packages of what is missing here for a build with these Meson options, one a line.
kolo_missing_packages() {
  local pair libraries=(fmt:libfmt-dev libsodium:libsodium-dev hwloc:libhwloc-dev nlohmann_json:nlohmann-json3-dev
    CLI11:libcli11-dev)
  [[ " $* " == *" -Dtests=disabled "* ]] || libraries+=(catch2:catch2)
  for pair in c++:g++ meson:meson ninja:ninja-build pkg-config:pkg-config python3:python3; do
    command -v "${pair%%:*}" >/dev/null || echo "${pair#*:}"
  done
  for pair in "${libraries[@]}"; do
    pkg-config --exists "${pair%%:*}" 2>/dev/null || echo "${pair#*:}"
  done
}

# The same of what a build can do without: the transport over InfiniBand steps aside, and the interposer for each MPI.
kolo_missing_optional_packages() {
  local pair libraries=(libibverbs:libibverbs-dev)
  [[ " $* " == *" -Dmpi=disabled "* ]] || libraries+=(ompi-c:libopenmpi-dev mpich:libmpich-dev)
  for pair in "${libraries[@]}"; do
    pkg-config --exists "${pair%%:*}" 2>/dev/null || echo "${pair#*:}"
  done
}

# Runs apt-get without questions; its output is shown only if it fails.
kolo_apt_get() {
  local log status=0
  log=$(mktemp)
  "${kolo_as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 "$@" </dev/null >"$log" 2>&1 ||
    status=$?
  [[ $status -eq 0 ]] || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

# Whether packages can be installed here; says nothing.
kolo_can_install() {
  kolo_as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    kolo_as_root=(sudo -n)
  fi
  command -v apt-get >/dev/null && "${kolo_as_root[@]}" true 2>/dev/null
}

kolo_install_packages() {
  local missing
  mapfile -t missing < <(kolo_missing_packages "$@")
  [[ ${#missing[@]} -gt 0 ]] || return 0

  if ! command -v apt-get >/dev/null; then
    echo "Missing here, by the names of the Debian packages: ${missing[*]}" >&2
    return 1
  fi
  if ! kolo_can_install; then
    echo "Something is missing. As root run:" >&2
    echo "  apt-get update && apt-get install -y ${missing[*]}" >&2
    return 1
  fi

  echo "installing ${missing[*]}"
  # A stale or unreachable index must not stop an installation for which the present one suffices.
  kolo_apt_get update || echo "apt-get update failed; trying with the package lists that are here" >&2
  kolo_apt_get install --no-install-recommends "${missing[@]}" || return 1
  mapfile -t missing < <(kolo_missing_packages "$@")
  if [[ ${#missing[@]} -gt 0 ]]; then
    echo "Installed, yet still not usable: ${missing[*]}" >&2
    return 1
  fi
}

# Installs packages where it may, and says nothing of those that it could not. One by one: a package that cannot be had, or whose daemon does
# not start here, must not keep the others out.
kolo_try_packages() {
  local package
  [[ $# -gt 0 ]] && kolo_can_install || return 0
  echo "installing $*"
  kolo_apt_get update 2>/dev/null || true
  for package in "$@"; do
    kolo_apt_get install --no-install-recommends "$package" 2>/dev/null || true
  done
}

# What the build can do without.
kolo_install_extras() {
  local missing
  mapfile -t missing < <(kolo_missing_optional_packages "$@")
  [[ ${#missing[@]} -gt 0 ]] || return 0
  kolo_try_packages "${missing[@]}"
  mapfile -t missing < <(kolo_missing_optional_packages "$@")
  [[ ${#missing[@]} -eq 0 ]] || echo "not installed, and done without: ${missing[*]}"
}

# Of PROGRAM:PACKAGE... prints the packages whose program is not here, one a line.
kolo_absent() {
  local pair
  for pair in "$@"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null || echo "${pair#*:}"
  done
}

# Installs, where it may, what some tests use and others do without: PROGRAM:PACKAGE... Never fails; says in one line what is missing.
kolo_install_optional() {
  local missing
  mapfile -t missing < <(kolo_absent "$@")
  if [[ ${#missing[@]} -gt 0 ]]; then
    kolo_try_packages "${missing[@]}"
    mapfile -t missing < <(kolo_absent "$@")
  fi
  [[ ${#missing[@]} -eq 0 ]] || echo "not installed, the tests that need it are skipped: ${missing[*]}"
}

kolo_own_torch_python=$kolo_top/torch-python/bin/python

# Prints a Python that has torch, if there is one: python3, or what kolo_make_torch_python has made.
kolo_torch_python() {
  local python
  for python in "$(command -v python3)" "$kolo_own_torch_python"; do
    if [[ -x $python ]] && "$python" "$kolo_top/src/torch/find_torch.py" >/dev/null 2>&1; then
      echo "$python"
      return 0
    fi
  done
}

# Makes a Python that has torch, in the folder torch-python. Never fails; says in one line that it has not.
kolo_make_torch_python() {
  local folder=$kolo_top/torch-python
  echo "installing torch 2.15 in $folder" >&2
  { python3 -m venv "$folder" && "$folder/bin/pip" install -q --no-compile 'torch==2.15.*' 'setuptools>=77' numpy expecttest; } >&2 ||
    echo "not installed, the tests that need it are skipped: torch" >&2
}

# Installs what tools/run-tests --all tries with Kolo for the PyTorch of the Python $1, if that Python is ours: frameworks, and another version of
# torch. Only where CI is "true", for it takes minutes and gigabytes.
kolo_torch_others() {
  local other=$kolo_top/torch-python-2.14
  [[ ${CI-} == true && $1 == "$kolo_own_torch_python" ]] || return 0
  echo "installing frameworks in torch-python, and torch 2.14 in $other" >&2
  "$1" -m pip install -q accelerate transformers lightning 'ray[train]' >&2 || echo "not installed, and not tried: frameworks" >&2
  "$1" -m pip install -q --no-build-isolation deepspeed >&2 || echo "not installed, and not tried: deepspeed" >&2
  [[ -x $other/bin/python ]] || { python3 -m venv "$other" >&2 && "$other/bin/pip" install -q 'torch==2.14.*' 'setuptools>=77' numpy >&2; } ||
    echo "not installed, and not tried: torch 2.14" >&2
}

# Configures $1 with the options that follow, unless it was configured with the same before.
kolo_configure() {
  local build=$1 log status=0 wanted
  shift
  wanted=$(printf '%s\n' "$@")
  if [[ -f $build/build.ninja && -f $build/.kolo-options && $(<"$build/.kolo-options") == "$wanted" ]]; then
    return 0
  fi
  log=$(mktemp)
  if [[ -f $build/build.ninja ]]; then
    meson setup --reconfigure "$build" "$kolo_top" "$@" >"$log" 2>&1 ||
      meson setup --wipe "$build" "$kolo_top" "$@" >"$log" 2>&1 || status=$?
  else
    meson setup "$build" "$kolo_top" "$@" >"$log" 2>&1 || status=$?
  fi
  if [[ $status -eq 0 ]]; then
    printf '%s\n' "$wanted" >"$build/.kolo-options"
  else
    cat "$log" >&2
  fi
  rm -f "$log"
  return "$status"
}

# Installs what is missing and configures; takes the arguments of kolo_setup. $kolo_build is then the build folder.
kolo_prepare() {
  kolo_build=$kolo_top/build
  if [[ ${1-} == --build-dir ]]; then
    kolo_build=${2:?--build-dir needs a folder}
    shift 2
  fi
  kolo_install_packages "$@" || return 1
  kolo_install_extras "$@"
  kolo_configure "$kolo_build" "$@" || return 1
}

kolo_setup() {
  kolo_prepare "$@" || return 1
  python3 "$kolo_top/tools/building.py" "$kolo_build" || return 1
}
