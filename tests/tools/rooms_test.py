#!/usr/bin/env python3
"""Rooms include only their own headers and those of rooms that they link: rooms_test.py ROOT
ROOMS_JSON.

A function of a room that is not linked does not link (sluice_room() in cmake/SluiceOptions.cmake),
but inline code would. So includes are checked as well, also those of LibTorch. Each room has a
README.md that describes its contents. JSON is parsed, and host memory is pinned and copied to the
GPU, only where the lists below say.
"""

import json
import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^#include "((?:aio|swap|offload|engine|python)/[^"]+)"', re.MULTILINE)
TORCH_INCLUDE = re.compile(r"^#include [<\"]((?:ATen|c10|torch)/[^>\"]+)[>\"]", re.MULTILINE)
TORCH = "sluice::torch"
SUFFIXES = (".cc", ".h", ".cu", ".cuh")
# Files that parse JSON without aio/bounded_json.h: text that this program has just written itself.
PARSES = re.compile(r"\b(?:[jJ]son|ordered_json)::(?:parse|accept)\(")
READ_PAST_BOUNDS = {
    "aio/bounded_json.h", "bench/step_report.cc", "engine/config/stored_config.cc",
    "engine/plan/report/plan_json.cc", "engine/weights/safetensors_header.cc",
    "tools/cli/profile_report.cc"}
# Scripts of tools/ that parse JSON without toolbox.read_json().
LOADS = re.compile(r"\bjson\.loads?\(")
LOADED_PAST_BOUNDS = {"tools/toolbox.py", "tools/demo", "tools/lint"}
# Where host memory is pinned for the GPU, and where it is copied between them.
PINS = re.compile(r"\b(?:cu(?:da)?(?:Mem)?(?:HostRegister|HostAlloc|MallocHost|AllocHost)|"
                  r"pin(?:ned)?_memory)\(")
PINNED_IN = {"engine/device/gpu.cc"}
COPIES = re.compile(r"\bcudaMemcpyAsync\([^;]*\bcudaMemcpy(?:HostToDevice|DeviceToHost)\b")
COPIED_IN = {"engine/device/cuda_host_copies.cc", "offload/state/device_tier_cuda.cc"}
OTHERS = {"sluice_aio": "aio", "sluice_aio_sim": "aio"}


def reached(rooms):
    """library -> itself, the libraries that it links, and those that they pass on."""
    hands_on = {room["room"]: room["hands_on"] for room in rooms}

    def follow(names, seen):
        for name in names:
            if name not in seen:
                seen.add(name)
                follow(hands_on.get(name, []), seen)
        return seen

    found = {room["room"]: follow(room["links"], {room["room"]}) for room in rooms}
    return {**{name: {name} for name in OTHERS}, **found}


def visible(rooms):
    """(file or folder) -> the folders whose headers it may include, and TORCH.

    A source sees what its library links. A folder, and so a header in it, sees what any of its
    libraries links."""
    folders = {**{room["room"]: room["folder"] for room in rooms}, **OTHERS}
    sources = {room["room"]: room["sources"] for room in rooms}
    seen = {}
    for name, libraries in reached(rooms).items():
        sees = {folders.get(library, library) for library in libraries}
        seen.setdefault(folders[name], set()).update(sees)
        for source in sources.get(name, []):
            seen.setdefault(f"{folders[name]}/{source}", set()).update(sees)
    return seen


def wrong_includes(root, seen, folders):
    for folder in sorted(folders):
        for path in sorted((root / folder).iterdir()):
            if path.suffix not in SUFFIXES:
                continue
            name = str(path.relative_to(root))
            sees, text = seen.get(name, seen[folder]), path.read_text(encoding="utf-8")
            for included in INCLUDE.findall(text):
                if str(Path(included).parent) not in sees:
                    yield f"{name} includes {included}, which its room does not link"
            for included in TORCH_INCLUDE.findall(text):
                if TORCH not in sees:
                    yield f"{name} includes {included}, and its room does not link LibTorch"


def unbounded_json(root):
    for top in ("aio", "swap", "offload", "engine", "python", "tools", "bench"):
        for path in sorted((root / top).rglob("*")):
            name = str(path.relative_to(root))
            is_cxx = path.suffix in (".cc", ".h")
            is_python = top == "tools" and path.is_file() and path.suffix in (".py", "")
            if is_cxx and name not in READ_PAST_BOUNDS and \
                    PARSES.search(path.read_text(encoding="utf-8")):
                yield f"{name} reads JSON past aio/bounded_json.h"
            if is_python and name not in LOADED_PAST_BOUNDS and "__pycache__" not in name and \
                    LOADS.search(path.read_text(encoding="utf-8")):
                yield f"{name} reads JSON past toolbox.read_json()"


def pinning_elsewhere(root):
    """A refusal has its consequence in HostPinning and HostCopies, and nowhere else."""
    for top in ("aio", "swap", "offload", "engine", "python/native", "tools", "bench"):
        for path in sorted(it for it in (root / top).rglob("*") if it.suffix in SUFFIXES):
            name, text = str(path.relative_to(root)), path.read_text(encoding="utf-8")
            if name not in PINNED_IN and PINS.search(text):
                yield f"{name} pins host memory, which only cuda_host_pinning() may do"
            if name not in COPIED_IN and COPIES.search(text):
                yield f"{name} copies between host and GPU without CudaHostCopies"


def main():
    root, rooms_file = Path(sys.argv[1]), Path(sys.argv[2])
    rooms = json.loads(rooms_file.read_text(encoding="utf-8"))
    folders = {*OTHERS.values(), *(room["folder"] for room in rooms)}
    findings = list(wrong_includes(root, visible(rooms), folders))
    findings += [f"{folder} has no README.md" for folder in sorted(folders)
                 if not (root / folder / "README.md").is_file()]
    with_sources = {str(path.parent.relative_to(root)) for top in ("swap", "offload", "engine")
                    for path in (root / top).rglob("*.cc")}
    findings += [f"{folder} has sources and is no room" for folder in sorted(with_sources - folders)]
    findings += unbounded_json(root)
    findings += pinning_elsewhere(root)
    print("\n".join(findings) or f"{len(folders)} rooms, no wrong include")
    return 1 if findings else 0


sys.exit(main())
