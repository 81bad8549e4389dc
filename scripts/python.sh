# shellcheck shell=bash
# Sourced by scripts/run, scripts/test and .ci/run: finds a Python, and through it the virtual environment to work in.

# Print every Python 3 to try, best first: the one asked for, the active environment's, the default, and known versions.
python_candidates() {
    local version pyenv
    if [[ -n "${EJPY_PYTHON:-}" ]]; then echo "$EJPY_PYTHON"; fi
    if [[ -n "${VIRTUAL_ENV:-}" ]]; then echo "$VIRTUAL_ENV/bin/python"; fi
    echo python3
    for version in 3.13 3.12 3.11 3.10 3.14; do echo "python$version"; done
    # pyenv's commands refuse versions that are installed but not selected.
    for pyenv in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[0-9]*/bin/python3; do echo "$pyenv"; done
}

# Print the first Python that is 3.10 or later and can make virtual environments. Without one: say why, return 1.
find_python() {
    local candidate version no_venv="" too_old=""
    while IFS= read -r candidate; do
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        case "$version" in
            3.[0-9] | 2.*) too_old="${too_old:-$candidate is Python $version}" ;;
            *)
                if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
                    echo "$candidate"
                    return 0
                fi
                no_venv="${no_venv:-$version}"
                ;;
        esac
    done < <(python_candidates)
    if [[ -n "$no_venv" ]]; then
        echo "Python $no_venv is here, but cannot make virtual environments." \
            "On Debian and Ubuntu: apt-get install python$no_venv-venv" >&2
    else
        echo "ejpy needs Python 3.10 or later, and none was found${too_old:+ ($too_old)}." \
            "Install one, or name it: EJPY_PYTHON=/path/to/python3 $0" >&2
    fi
    return 1
}

# Print the Python of an up-to-date environment with ejpy and the named extras.
environment_python() {
    local python
    python=$(find_python) || return 1
    "$python" scripts/environment.py "$@"
}
