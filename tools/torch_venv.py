"""Virtual environments with a torch wheel of PyPI: one for each version of torch and of Python.

They are in the user's cache folder, shared by all clones. Builds link LibTorch from them.
"""

import os
import shutil
import subprocess
import sys

from toolbox import Failure, cache_folder, lock, say

TORCH_VERSION = "2.11.0"  # what tools/setup builds for
PYTHONS = {"2.11": ((3, 10), (3, 14))}  # a wheel's oldest and newest, where they are known
VENV_GB = 8  # peak size of the download and the unpacked environment


def python_version(python):
    """(major, minor) of an interpreter."""
    if python == sys.executable:
        return sys.version_info[:2]
    try:
        text = subprocess.run([python, "-c", "import sys; print(*sys.version_info[:2])"],
                              capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failure(f"{python} does not run: {error}") from error
    return tuple(map(int, text.split()))


def venv_folder(torch=TORCH_VERSION, python=sys.executable):
    major, minor = python_version(python)
    return cache_folder() / f"venv-torch-{torch}-py{major}.{minor}"


def is_complete(venv):
    # The stamp is written last; an upgrade can break the link to the interpreter.
    return (venv / ".complete").exists() and (venv / "bin/python").exists()


def provide_venv(torch=TORCH_VERSION, python=sys.executable):
    """The environment, made if it is not there. Failure's text has no advice of its caller's
    options."""
    venv = venv_folder(torch, python)
    if not is_complete(venv):
        with lock(venv.with_name(venv.name + ".lock"), "fetching LibTorch"):
            if not is_complete(venv):
                _make(venv, torch, python)
    return venv


def _make(venv, torch, python):
    """Fills `venv` and writes its stamp last: without a stamp, the next set-up starts again."""
    version = python_version(python)
    oldest, newest = PYTHONS.get(torch.rpartition(".")[0], ((3, 10), version))
    if not oldest <= version <= newest:
        raise Failure(f"LibTorch's wheel {torch} needs Python {oldest[0]}.{oldest[1]} to "
                      f"{newest[0]}.{newest[1]}, and this is {version[0]}.{version[1]}. Run this "
                      "by another one (python3.12 tools/setup, say)")
    shutil.rmtree(venv, ignore_errors=True)
    free_gb = shutil.disk_usage(venv.parent).free / 1e9
    if free_gb < VENV_GB:
        raise Failure(f"LibTorch needs {VENV_GB} GB in {venv.parent}, and only {free_gb:.1f} GB "
                      "are free there. Free some, or set XDG_CACHE_HOME to a folder on a larger "
                      "disk")
    say(f"LibTorch: fetching torch {torch} into {venv} (some minutes, 5 GB)")
    downloads = venv / "downloads"  # /tmp may be small, or in memory
    environment = dict(os.environ, TMPDIR=str(downloads), PIP_DISABLE_PIP_VERSION_CHECK="1")
    environment.pop("PYTHONPATH", None)
    progress = [] if sys.stdout.isatty() else ["--progress-bar", "off"]
    steps = (
        ([str(python), "-m", "venv", str(venv)],
         "making a virtual environment failed; on Debian and Ubuntu it needs python3-venv"),
        ([str(venv / "bin/python"), "-m", "pip", "install", "--no-cache-dir", *progress,
          f"torch=={torch}", "numpy"],
         "pip could not install LibTorch; is the network up? Its messages above say why. Run "
         "this again"),
        ([str(venv / "bin/python"), "-c", "import numpy, torch; torch.ones(2, 2) @ torch.eye(2)"],
         "the torch wheel was installed and does not run on this machine"),
    )
    for command, sentence in steps:
        if subprocess.run(command, env=environment, check=False).returncode != 0:
            shutil.rmtree(venv, ignore_errors=True)
            raise Failure(sentence)
        downloads.mkdir(exist_ok=True)
    shutil.rmtree(downloads)
    with open(venv / ".complete", "w", encoding="ascii") as stamp:
        stamp.write(f"torch {torch}\n")
        stamp.flush()
        os.fsync(stamp.fileno())
