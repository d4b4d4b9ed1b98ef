#!/usr/bin/env python3
"""Every include of a room is of the room itself or of one that it links: rooms_test.py ROOT ROOMS_JSON.

A function of another room does not link (sluice_room() in cmake/SluiceOptions.cmake); what is inline
does, so the includes are looked up as well. Each room has a README.md that says what lives there.
"""

import json
import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^#include "((?:aio|swap|offload|engine)/[^"]+)"', re.MULTILINE)
SUFFIXES = (".cc", ".h", ".cu", ".cuh")
# The lowest layer links no other.
OTHERS = {"sluice_aio": "aio", "sluice_aio_sim": "aio"}


def visible_folders(rooms):
    """folder -> folders whose headers its files may include."""
    links = {room["room"]: room["links"] for room in rooms}
    folders = {**{room["room"]: room["folder"] for room in rooms}, **OTHERS}

    def reached(name, seen):
        for link in links.get(name, []):
            if link in folders and link not in seen:
                seen.add(link)
                reached(link, seen)
        return seen

    visible = {}
    for name, folder in folders.items():
        sees = visible.setdefault(folder, {folder})
        sees.update(folders[link] for link in reached(name, set()))
    return visible


def wrong_includes(root, visible):
    for folder, sees in sorted(visible.items()):
        for path in sorted((root / folder).iterdir()):
            if path.suffix not in SUFFIXES:
                continue
            for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
                if str(Path(included).parent) not in sees:
                    yield f"{path.relative_to(root)} includes {included}, which its room does not link"


def main():
    root, rooms_file = Path(sys.argv[1]), Path(sys.argv[2])
    rooms = json.loads(rooms_file.read_text(encoding="utf-8"))
    visible = visible_folders(rooms)
    findings = list(wrong_includes(root, visible))
    findings += [f"{folder} has no README.md" for folder in sorted(visible)
                 if not (root / folder / "README.md").is_file()]
    with_sources = {str(path.parent.relative_to(root)) for top in ("swap", "offload", "engine")
                    for path in (root / top).rglob("*.cc")}
    findings += [f"{folder} has sources and is no room" for folder in sorted(with_sources - set(visible))]
    print("\n".join(findings) or f"{len(visible)} rooms, no wrong include")
    return 1 if findings else 0


sys.exit(main())
