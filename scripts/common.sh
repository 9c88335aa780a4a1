# What the scripts share; sourced from the repository root by build, demo and test.

packages=(g++ cmake ninja-build git patch python3 python3-venv pkg-config ca-certificates
  libhdf5-dev libcli11-dev nlohmann-json3-dev libtomlplusplus-dev libopenblas-openmp-dev
  libgtest-dev librapidcheck-dev)

say() { echo "-- $*"; }

die() {
  echo "katt: $*" >&2
  exit 2
}

# quietly LOG COMMAND...: the command's output goes to LOG.
quietly() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 </dev/null
}

# Installs the Debian packages that are missing.
install_packages() {
  command -v dpkg-query >/dev/null || return 0 # another system: CMake names what it misses
  local missing=() package as_root=()
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing and only root can install them: ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  quietly build/apt.log "${as_root[@]}" apt-get update ||
    die "apt-get update failed (is there a network?); see build/apt.log"
  quietly build/apt.log "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}" ||
    die "apt-get could not install ${missing[*]}; see build/apt.log"
}

# Makes build/venv, the Python of the report and the tests, unless it is up to date.
make_venv() {
  local stamp
  stamp=$(cat scripts/requirements.txt drivers/report/pyproject.toml <(pwd) | sha256sum)
  if [ "$(cat build/venv/stamp 2>/dev/null)" = "$stamp" ] && build/venv/bin/python -c '' 2>/dev/null; then
    return 0
  fi
  say "making the Python environment build/venv"
  rm -rf build/venv
  if ! { quietly build/venv.log python3 -m venv build/venv &&
    quietly build/venv.log build/venv/bin/pip install --disable-pip-version-check \
      -r scripts/requirements.txt &&
    quietly build/venv.log build/venv/bin/pip install --disable-pip-version-check \
      --no-build-isolation --no-deps -e drivers/report; }; then
    die "cannot make the Python environment build/venv (is there a network?); see build/venv.log"
  fi
  echo "$stamp" >build/venv/stamp
}
