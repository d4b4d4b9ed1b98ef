"""The package's version and dependencies, which depend on the torch that it is built for.

The provider of [tool.scikit-build.metadata] in pyproject.toml. The version is that of
CMakeLists.txt, with torch's as its label: 0.1.0+torch2.11.
"""

import importlib.metadata
import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def _torch():
    """The installed torch's (major, minor); None if there is none, which CMake then says."""
    try:
        found = re.match(r"(\d+)\.(\d+)\.", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return None
    return found.groups() if found else None


def dynamic_metadata(field, settings=None):
    torch = _torch()
    if field == "dependencies":
        return [f"torch=={torch[0]}.{torch[1]}.*" if torch else "torch"]
    text = (_ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    version = re.search(r"project\(sluice VERSION ([0-9.]+)", text).group(1)
    return f"{version}+torch{torch[0]}.{torch[1]}" if torch else version
