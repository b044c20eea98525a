"""Ways to start a Python process apart from the rest of the machine, from the strongest to the weakest.

In the stronger ways the process sees Python itself, its libraries and the few files of the grader that it runs, and
nothing else of the disk: whatever an instructor keeps there need not be listed to be hidden.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from mha_course.grader.source import library_folders

PACKAGE = Path(__file__).resolve().parents[1]
FILES = (
    "__init__.py",
    *(f"grader/{name}.py" for name in ("__init__", "zygote", "loader", "worker", "wire", "channel")),
)
HOME = "/scratch"  # inside, an empty folder in memory; not /tmp, below which Python itself may lie
HOME_SIZE = 16 * 2**20  # bytes
_GRADER = "/grader"  # where those files lie inside
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_SETTINGS = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
_DEVICES = ("null", "zero", "random", "urandom")

# Builds the same view as `bubblewrap` with what util-linux has: $1 is an empty folder, then come pairs of source and
# place up to a `--`, then the command. Links are copied, everything else is shown read-only, and no power to undo
# this is left.
_SCRIPT = """
set -e
root=$1; shift
mount -t tmpfs -o mode=755 tmpfs "$root"
mkdir "$root/scratch" "$root/proc" "$root/dev"
mount -t tmpfs -o size=$1 tmpfs "$root/scratch"; shift
while [ "$1" != -- ]; do
    place="$root$2"
    mkdir -p "$(dirname "$place")"
    if [ -z "$1" ]; then
        mount -t tmpfs -o ro tmpfs "$place"
    elif [ -L "$1" ] && [ "$1" = "$2" ]; then
        cp -P "$1" "$place"
    else
        if [ -d "$1" ]; then mkdir -p "$place"; else touch "$place"; fi
        mount --bind "$1" "$place"
        case $1 in /dev/*) ;; *) mount -o remount,bind,ro,nosuid,nodev "$place" ;; esac
    fi
    shift 2
done
shift
mount -t proc proc "$root/proc"
mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def ways() -> tuple[tuple[str, Callable[[list[str], str], list[str]], bool], ...]:
    """List the ways that this machine may allow, strongest first; only trying shows whether it does.

    Returns:
        For each, its name, a function that makes the command line (of a Python command and an empty folder), and
        whether inside every process in sight is one of its own.
    """
    found: list[tuple[str, Callable[[list[str], str], list[str]], bool]] = [("process", _plain, False)]
    if shutil.which("unshare") and shutil.which("setpriv"):
        found.insert(0, ("unshare", _unshare, True))
    if shutil.which("bwrap"):
        found.insert(0, ("bubblewrap", _bubblewrap, True))
    return tuple(found)


def environment(*, is_private: bool, scratch: str) -> dict[str, str]:
    """Return the variables that learner code may see: none of the instructor's own."""
    home = HOME if is_private else scratch
    grader = _GRADER if is_private else str(PACKAGE.parent)
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "MPLBACKEND": "agg",
        "PYTHONPATH": os.pathsep.join((grader, *library_folders())),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        **threads,
        **kept,
    }


def _view() -> Iterator[tuple[str, str]]:
    """List what is to be seen inside, each as a path and its place there; an empty path is an empty folder."""
    python = {os.path.realpath(sys.base_prefix), str(Path(os.path.realpath(sys.executable)).parents[1])}
    seen: list[str] = []
    for path in (*_SYSTEM, *_SETTINGS, *sorted(python), *library_folders()):
        if Path(path).exists() and not any(Path(path).is_relative_to(outer) for outer in seen):
            seen.append(path)
            yield path, path
    for folder in library_folders():  # an installed course lies among the libraries, reference and all
        if (Path(folder) / PACKAGE.name).is_dir():
            yield "", f"{folder}/{PACKAGE.name}"
    for file in FILES:
        yield str(PACKAGE / file), f"{_GRADER}/{PACKAGE.name}/{file}"


def _bubblewrap(command: list[str], scratch: str) -> list[str]:
    namespaces = ("user", "pid", "net", "ipc", "uts")
    size = ["--size", str(HOME_SIZE)] if "--size" in _bubblewrap_help() else []
    arguments = [
        *("bwrap", *(f"--unshare-{name}" for name in namespaces), "--as-pid-1", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", HOME),
    ]
    for source, place in _view():
        if not source:
            arguments += ["--tmpfs", place, "--remount-ro", place]
        elif source == place and Path(source).is_symlink():
            arguments += ["--symlink", str(Path(source).readlink()), place]
        else:
            arguments += ["--ro-bind", source, place]
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/", "--", *command]


@cache
def _bubblewrap_help() -> str:
    shown = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return shown.stdout + shown.stderr


def _unshare(command: list[str], scratch: str) -> list[str]:
    namespaces = ("user", "pid", "net", "ipc", "uts", "mount")
    view = [*_view(), *((f"/dev/{name}", f"/dev/{name}") for name in _DEVICES)]
    return [
        *("unshare", *(f"--{name}" for name in namespaces), "--map-root-user", "--fork", "--kill-child"),
        *("sh", "-c", _SCRIPT, "sh", scratch, str(HOME_SIZE)),
        *(part for pair in view for part in pair),
        *("--", *command),
    ]


def _plain(command: list[str], scratch: str) -> list[str]:
    return command
