"""Links between the repository's pages and files: each leads to a file, and to a heading of it."""

from urllib.parse import unquote

from docs_parts import markdown
from toolbox import ROOT

PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")


def pages(files):
    """The files whose links are checked."""
    return [name for name in files if name in PAGES or name.rsplit("/", 1)[-1] == "README.md"
            or name.startswith("docs/") and name.endswith(".md")]


def is_elsewhere(target):
    return "://" in target or target.startswith(("mailto:", "//"))


def destination(page, target):
    """(path relative to the root, anchor) of a link; None for the path where it leaves the root."""
    path, _, anchor = unquote(target).partition("#")
    if not path:
        return page, anchor
    parts = [] if path.startswith("/") else page.split("/")[:-1]
    for part in path.strip("/").split("/"):
        if part == "..":
            if not parts:
                return None, anchor
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts), anchor


def broken(names, generated, root=ROOT):
    """What is wrong with the links of these pages, as FILE:LINE: sentences. `generated`: pages that
    only the site has, which pages of docs/ may link to; the site's build checks those anchors."""
    anchors = {}
    for page in names:
        text = (root / page).read_text(encoding="utf-8")
        for link in markdown.links_of(text):
            if is_elsewhere(link.target):
                continue
            path, anchor = destination(page, link.target)
            if path in generated:
                if not page.startswith("docs/"):
                    yield (f"{page}:{link.number}: {link.target} is made with the site and is not "
                           "in the repository")
                continue
            if path is None or not (root / path).exists():
                yield f"{page}:{link.number}: the link {link.target} leads to no file"
            elif anchor and path.endswith(".md"):
                if path not in anchors:
                    anchors[path] = markdown.anchors_of((root / path).read_text(encoding="utf-8"))
                if anchor not in anchors[path]:
                    yield f"{page}:{link.number}: {path} has no heading #{anchor}"
