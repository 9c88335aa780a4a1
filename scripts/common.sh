# Functions that the scripts share; build, demo and test source it from the repository root.

packages=(g++ cmake ninja-build git patch python3 python3-venv pkg-config ca-certificates
  libhdf5-dev libcli11-dev nlohmann-json3-dev libtomlplusplus-dev libopenblas-openmp-dev libhwloc-dev
  libgtest-dev librapidcheck-dev libopenmpi-dev openmpi-bin)
# For the presets tsan and fuzz: Clang with its sanitizers, what names their frames, and its OpenMP; an OpenBLAS without GCC's.
clang_packages=(clang-19 libclang-rt-19-dev libomp-19-dev llvm-19 libopenblas-pthread-dev)

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

# configure PRESET OPTION...: makes build/PRESET; tells bad input (no network, a wrong hash) in one line of ours.
configure() {
  local log=build/$1/configure.log
  say "configuring build/$1"
  quietly "$log" cmake --preset "$@" && return 0
  grep '^katt: ' "$log" >&2 && exit 2
  tail -n 30 "$log" >&2
  exit 1
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

# The address of this machine's first source of Debian's own packages.
debian_mirror() {
  local site
  # shellcheck disable=SC2016 # APT's own variable
  site=$(apt-get indextargets --format '$(SITE)' 'Origin: Debian' 'Label: Debian' | head -n 1)
  echo "${site%/}"
}

# make_environment NAME REQUIREMENTS [PACKAGE]: makes the Python environment build/NAME with the pinned
# requirements and a package of this tree, unless it is up to date.
make_environment() {
  local venv=build/$1 requirements=$2 package=${3:-} stamp
  stamp=$(cat "$requirements" ${package:+"$package/pyproject.toml"} <(pwd) <(python3 --version) | sha256sum)
  if [ "$(cat "$venv/stamp" 2>/dev/null)" = "$stamp" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    return 0
  fi
  say "making the Python environment $venv"
  rm -rf "$venv"
  if ! { quietly "$venv.log" python3 -m venv "$venv" &&
    quietly "$venv.log" "$venv/bin/pip" install --disable-pip-version-check -r "$requirements" &&
    { [ -z "$package" ] || quietly "$venv.log" "$venv/bin/pip" install --disable-pip-version-check \
      --no-build-isolation --no-deps -e "$package"; }; }; then
    die "cannot make the Python environment $venv (is there a network?); see $venv.log"
  fi
  echo "$stamp" >"$venv/stamp"
}

# Makes build/venv, the Python of the report and the tests.
make_venv() {
  make_environment venv scripts/requirements.txt drivers/report
}

# build_levels MPI TARGETS LEVEL...: builds these targets in build/package/LEVEL for each level of cmake/levels.cmake; MPI is
# ON or OFF. Nothing of a level is run: this CPU may lack it. The last level's folder holds the package of all.
build_levels() {
  local mpi=$1 targets=$2 level folders=()
  shift 2
  for level in "$@"; do
    say "building build/package/$level (the first time for minutes)"
    mkdir -p "build/package/$level"
    quietly "build/package/$level/configure.log" cmake --preset openmp -B "build/package/$level" -DKATT_CPU="$level" \
      -DKATT_PYTHON=ON -DPython_EXECUTABLE="$PWD/build/venv/bin/python" -DKATT_TESTS=OFF -DKATT_MPI="$mpi" \
      "-DKATT_PACKAGE=$(IFS=';' && echo "${folders[*]}")" ||
      { tail -n 20 "build/package/$level/configure.log" >&2 && die "cannot configure level $level"; }
    # shellcheck disable=SC2086 # words
    quietly "build/package/$level/build.log" cmake --build "build/package/$level" --target $targets ||
      { tail -n 20 "build/package/$level/build.log" >&2 && die "cannot build level $level"; }
    folders+=("$PWD/build/package/$level")
  done
}

# Levels for `--levels`, from commas to words; checked.
levels_of() {
  local known level
  [ "$(uname -m)" = x86_64 ] || die "packages are for x86_64; this machine is $(uname -m)"
  known=$(sed -n 's/^set(katt_levels \(.*\))/\1/p' cmake/levels.cmake)
  for level in ${1//,/ }; do
    case " $known " in *" $level "*) ;; *) die "--levels holds $level, expected some of ${known// /, }" ;; esac
  done
  [ -n "$1" ] && echo "${1//,/ }" || echo "$known"
}

# read_package_options USAGE ARGUMENT...: sets chosen, the levels of --levels in words, and folder, by default build/dist.
read_package_options() {
  local usage=$1 levels=
  shift
  folder=
  while [ $# -gt 0 ]; do
    case $1 in
      --levels)
        [ $# -ge 2 ] || die "$usage"
        levels=$2
        shift
        ;;
      -*) die "$usage" ;;
      *)
        [ -z "$folder" ] || die "$usage"
        folder=$1
        ;;
    esac
    shift
  done
  case $folder in '') folder=build/dist ;; /*) ;; *) folder=$called_in/$folder ;; esac
  # shellcheck disable=SC2034 # the script that called reads it
  chosen=$(levels_of "$levels")
}
