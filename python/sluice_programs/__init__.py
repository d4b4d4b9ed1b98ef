"""Starts the programs of an installed Sluice, for the torch of this environment.

It finds torch without importing it, so a command that needs none starts at once. The package holds
the programs (bin/) and what they read (share/sluice/), in the folders of `cmake --install`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: `sluice` prints this where a command needs torch, and ends.
PROBLEM = "SLUICE_TORCH_PROBLEM"


def _build():
    """sluice._build, without importing sluice, which imports torch."""
    spec = importlib.util.spec_from_file_location("_build", HERE.parent / "sluice/_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch_folder() -> Path | None:
    """Where `import torch` finds it in this environment; None if there is none."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).resolve().parent if spec is not None and spec.origin else None


def torch_version(folder: Path) -> str:
    """With its CUDA version: 2.11.0+cu130. Empty if the folder does not say."""
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    return found.group(1) if found else ""


def environment(base: dict[str, str]) -> dict[str, str]:
    """`base` with what the programs need to find torch, and this Python as `python3`."""
    result = dict(base)
    bin_folder = str(Path(sys.executable).parent)
    path = [part for part in result.get("PATH", "").split(os.pathsep) if part]
    if path[:1] != [bin_folder]:
        result["PATH"] = os.pathsep.join([bin_folder, *path])
    folder = torch_folder()
    problem = _build().problem_with(torch_version(folder) if folder else None)
    result.pop(PROBLEM, None)
    if problem:
        result[PROBLEM] = problem
    if folder is None:
        return result
    site = folder.parent  # `sluice doctor` looks at a torch that does not fit, too
    if site != HERE.parent:  # elsewhere than where the programs look for it
        found = [folder / "lib", *sorted((site / "nvidia").glob("*/lib"))]
        before = [part for part in result.get("LD_LIBRARY_PATH", "").split(os.pathsep) if part]
        result["LD_LIBRARY_PATH"] = os.pathsep.join([*map(str, found), *before])
    return result


def start(name: str) -> None:
    """Becomes the program: signals and the exit code are the program's own."""
    program = HERE / "bin" / name
    try:
        os.execve(program, [name, *sys.argv[1:]], environment(dict(os.environ)))
    except OSError as error:
        sys.exit(
            f"{name}: {program} cannot be started: {error.strerror}. Install the package again:"
            " pip install --force-reinstall --no-deps sluice-*.whl"
        )


def sluice() -> None:
    start("sluice")


def aio_bench() -> None:
    start("aio_bench")
