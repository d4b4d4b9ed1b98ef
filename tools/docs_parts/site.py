"""The site: a copy of docs/ and the generated pages, built by mkdocs with mkdocs-material.

  OUT/source/   what mkdocs reads
  OUT/site/     the site
"""

import html
import logging
import os
import re
import shutil

from docs_parts import links, markdown
from toolbox import ROOT, Failure

# Pages of the repository that are pages of the site, too.
ALSO = {"ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md"}
TITLES = {"gpu": "Needs a GPU", "download": "Downloads files", "example": "Example"}
# Pages for those who change the code come after the others among the results of a search.
_LATER = "---\nsearch:\n  boost: 0.5\n---\n\n"
# What Markdown leaves in a paragraph where it did not see a list, a table or a fence.
_MISREAD = re.compile(r"<p>(?:[^<]|<(?!/p>))*?^(?:[-*+] |\d+\. |\|.*\||```)", re.MULTILINE)


def path_in_site(path):
    """Where a file of the repository is in the site; None: nowhere."""
    if path in ALSO:
        return ALSO[path]
    return path[len("docs/"):] if path.startswith("docs/") else None


def for_site(page, text):
    """A page of the repository as the site has it.

    Links lead to pages of the site. A link to a file outside the site becomes the file's path. A
    mark of a shell fence becomes its title.
    """
    here = os.path.dirname(path_in_site(page))

    def link(whole, words, target):
        if links.is_elsewhere(target) or target.startswith("#"):
            return whole
        path, anchor = links.destination(page, target)
        there = None if path is None else path_in_site(path)
        if there:
            relative = os.path.relpath(there, here or ".")
            return whole.replace(f"]({target}", f"]({relative}{'#' + anchor if anchor else ''}")
        if words.replace("`", "").strip("/") in (path, target.strip("/")):
            return f"`{path}`"
        return f"{words} (`{path}`)"

    lines = markdown.replace_links(text, link).splitlines()
    for fence in markdown.fences_of(text):
        marks = [word for word in fence.words if word in TITLES]
        if marks:
            opening = lines[fence.number - 1]
            ticks = re.match(r"\s*(?:`+|~+)", opening)[0]
            titles = ", ".join(TITLES[mark] for mark in marks)
            lines[fence.number - 1] = f'{ticks}{{ .{fence.language} title="{titles}" }}'
    return "\n".join(lines) + "\n"


def make_source(files, generated, source):
    """Fills the folder `source` with the site's pages."""
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    for name in files:
        place = path_in_site(name)
        if place is None:
            continue
        (source / place).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            text = for_site(name, (ROOT / name).read_text(encoding="utf-8"))
            is_later = name in ALSO or name.startswith("docs/decisions/")
            (source / place).write_text((_LATER if is_later else "") + text, encoding="utf-8")
        else:
            shutil.copyfile(ROOT / name, source / place)
    for name, text in generated.items():
        if (source / name).exists():
            raise Failure(f"docs/{name} is generated; remove it")
        (source / name).write_text(text, encoding="utf-8")


class _Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def _all_pages(folder, source):
    """The pages of a folder for the navigation, README.md or index.md first."""
    names = sorted((source / folder).glob("*.md"),
                   key=lambda path: (path.stem.lower() not in ("readme", "index"), path.name))
    return [path.relative_to(source).as_posix() for path in names]


def _with_folders(nav, source):
    """The navigation with the pages of each folder in place of the folder."""
    made = []
    for entry in nav:
        if not isinstance(entry, dict):
            made.append(entry)
            continue
        ((title, value),) = entry.items()
        if isinstance(value, list):
            value = _with_folders(value, source)
        elif value.endswith("/"):
            value = _all_pages(value, source)
        if value:
            made.append({title: value})
    return made


def configuration(source, site):
    from mkdocs.config import load_config  # what tools/docs has asked for
    config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(source), site_dir=str(site))
    config.nav = _with_folders(config.nav, source)
    return config


def build(source, site):
    """Builds the site; returns what is wrong with it, sentences."""
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    from mkdocs.commands.build import build as build_site
    from mkdocs.exceptions import MkDocsException
    heard = _Warnings()
    log = logging.getLogger("mkdocs")
    log.addHandler(heard)
    log.propagate = False
    try:
        build_site(configuration(source, site))
    except MkDocsException as error:
        heard.texts.append(str(error))
    finally:
        log.removeHandler(heard)
    return [*heard.texts, *_misread(site)]


def _misread(site):
    for page in sorted(site.rglob("*.html")):
        article = re.search(r"<article.*</article>", page.read_text(encoding="utf-8"), re.DOTALL)
        for found in _MISREAD.finditer(article[0] if article else ""):
            text = html.unescape(re.sub(r"<[^>]*>", "", found[0].splitlines()[-1]))
            yield (f"{page.relative_to(site)}: a list, table or fence is part of a paragraph: put "
                   f"an empty line before it, or indent it by 4 columns: {text}")
