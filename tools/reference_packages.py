"""PyPI packages that checks need or compare Sluice with, in addition to those of the torch wheel.

They are in folders of their own in the user's cache folder, shared by all clones, so that the
engine's build environment does not change. `tools/setup --for=test` makes them; a test adds one
with use(), and skips if it does not exist.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys

from toolbox import Failure, cache_folder, say

PINNED = {"transformers": "5.23.0", "mfusepy": "3.1.1", "clang-tidy": "23.1.4"}
# Installed without their dependencies, which exist already or would be another torch. pyte is a
# terminal and wcwidth measures its characters. Prometheus's format is read by
# prometheus-client. The native module's stub is made by pybind11-stubgen.
PINNED_ALONE = {"peft": "0.21.2", "accelerate": "1.15.0", "psutil": "7.2.2", "pyte": "0.8.2",
                "wcwidth": "0.2.13", "prometheus-client": "0.22.1", "pybind11-stubgen": "3.0.0"}
# The packages that sluice-log writes with: 50 MB to fetch.
MONITORS = {"wandb": "0.31.0", "mlflow-skinny": "3.17.2"}
MONITORS_ALONE = {"tensorboard": "2.21.0", "absl-py": "2.5.1"}
# The further packages of MLflow's server, for the tests of sluice-log: 25 MB to fetch.
SERVER = {"flask": "3.1.3", "flask-cors": "6.0.5", "graphene": "3.4.3", "alembic": "1.20.1",
          "sqlalchemy": "2.1.9", "aiohttp": "3.14.5"}
SERVER_ALONE = {"pandas": "2.3.3", "pytz": "2025.2", "tzdata": "2025.2"}
# Trainers that train by the engine through inheritance: 90 MB to fetch.
TRL = {"datasets": "5.2.0"}
TRL_ALONE = {"trl": "1.16.0"}
# By the folder's name; a change in one group does not affect the others.
GROUPS = {"reference": (PINNED, PINNED_ALONE), "monitors": (MONITORS, MONITORS_ALONE),
          "server": (SERVER, SERVER_ALONE), "trl": (TRL, TRL_ALONE)}


def folder(group="reference"):
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256(json.dumps([*GROUPS[group]]).encode()).hexdigest()[:8]
    return cache_folder() / f"{group}-{key}-{version}"


def is_complete(group="reference"):
    return (folder(group) / ".complete").exists()


def clang_tidy():
    """The program itself; pip's script for it works only with the Python that installed it."""
    return folder() / "clang_tidy/data/bin/clang-tidy"


def use(group="reference"):
    """Makes the packages importable; packages of this Python come first."""
    if is_complete(group):
        sys.path.append(str(folder(group)))


def make(python, group="reference"):
    """Installs the packages with `python`, the torch wheel's. The stamp is written last."""
    where = folder(group)
    shutil.rmtree(where, ignore_errors=True)
    lists = [[f"{name}=={version}" for name, version in pinned.items()]
             for pinned in GROUPS[group]]
    every = ", ".join(word for words in lists for word in words)
    say(f"fetching {every} into {where}")
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    environment.pop("PYTHONPATH", None)
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--only-binary",
               ":all:", "--target", str(where)]
    for wanted in ([*lists[0]], ["--no-deps", *lists[1]]):
        if subprocess.run([*command, *wanted], env=environment, stdout=subprocess.DEVNULL,
                          check=False).returncode != 0:
            shutil.rmtree(where, ignore_errors=True)
            raise Failure(f"pip could not install {every}, which checks need; is the network up? "
                          "Its messages above say why. Run this again, or leave out --for=test")
    (where / ".complete").write_text(every + "\n", encoding="ascii")
