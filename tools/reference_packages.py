"""PyPI packages that checks need or compare Sluice with, beside the torch wheel's environment.

They lie in a folder of their own in the user's cache folder, shared by all clones: what the engine is
built with stays as it is. tools/setup --for=test makes it; a test adds it with use(), and skips
where it does not exist.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys

from toolbox import Failure, cache_folder, say

PINNED = {"transformers": "5.23.0", "mfusepy": "3.1.1", "clang-tidy": "23.1.4"}
# Without what they ask for: that is there, or would be a torch of its own.
# pyte is a terminal, whose characters wcwidth measures; prometheus-client reads what Prometheus does.
PINNED_ALONE = {"peft": "0.21.2", "accelerate": "1.15.0", "psutil": "7.2.2", "pyte": "0.8.2",
                "wcwidth": "0.2.13", "prometheus-client": "0.22.1"}


def folder():
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256(json.dumps([PINNED, PINNED_ALONE]).encode()).hexdigest()[:8]
    return cache_folder() / f"reference-{key}-{version}"


def is_complete():
    return (folder() / ".complete").exists()


def clang_tidy():
    """The program itself; what pip makes of it is a script for the Python that installed it."""
    return folder() / "clang_tidy/data/bin/clang-tidy"


def use():
    """Makes the packages importable; they come after what this Python has itself."""
    if is_complete():
        sys.path.append(str(folder()))


def make(python):
    """Fills the folder by `python`, the torch wheel's; the stamp is the last thing written."""
    shutil.rmtree(folder(), ignore_errors=True)
    lists = [[f"{name}=={version}" for name, version in pinned.items()]
             for pinned in (PINNED, PINNED_ALONE)]
    every = ", ".join(word for words in lists for word in words)
    say(f"fetching {every} into {folder()}")
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    environment.pop("PYTHONPATH", None)
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--only-binary",
               ":all:", "--target", str(folder())]
    for wanted in ([*lists[0]], ["--no-deps", *lists[1]]):
        if subprocess.run([*command, *wanted], env=environment, stdout=subprocess.DEVNULL,
                          check=False).returncode != 0:
            shutil.rmtree(folder(), ignore_errors=True)
            raise Failure(f"pip could not install {every}, which checks need; is the network up? "
                          "Its messages above say why. Run this again, or leave out --for=test")
    (folder() / ".complete").write_text(every + "\n", encoding="ascii")
