"""tools/changed_files.py on a repository of its own: which files count as changed, and which
sources include them."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"
LINES = "".join(f"int line_{number}();\n" for number in range(20))
SHOW = ("import sys; sys.path.insert(0, 'tools'); from changed_files import changed_files;"
        "paths, since = changed_files(int(sys.argv[1])); print(since);"
        "print(*(sorted(paths) if paths is not None else ['all']), sep='\\n')")


class Repository(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-changes-")
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "whole"
        self.path.mkdir()
        self.git("init", "--quiet")
        shutil.copytree(TOOLS, self.path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("a", "b", "c", "d", "e"):
            self.write(f"{name}.cc", f'#include "{name}.h"\n' + LINES)
            self.write(f"{name}.h", LINES.replace("line", name))
        self.commit()

    def git(self, *words):
        identity = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *words], cwd=self.path, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def write(self, name, text):
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_text(text, encoding="utf-8")

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "m")

    def changed(self, count, folder=None):
        """Its sentence about the last commits, and the files."""
        since, *files = subprocess.run(
            [sys.executable, "-B", "-c", SHOW, str(count)], cwd=folder or self.path, check=True,
            stdout=subprocess.PIPE, text=True, env=dict(os.environ)).stdout.splitlines()
        return since, [file for file in files if file]

    def test_what_was_moved_or_got_other_comments_is_not_changed(self):
        self.write("a.cc", f'#include "a.h"\n// Why.\n{LINES}')
        self.git("mv", "b.h", "room.h")
        self.write("b.cc", '#include "room.h"\n' + LINES)
        self.write("c.h", LINES.replace("line", "c").replace("c_7()", "c_7(int)"))
        self.write("d.cc", '#include "d.h"\n' + LINES.replace("_3();", "_3();  // NOLINT(x)"))
        self.commit()
        self.assertEqual(self.changed(1)[1], ["c.h", "d.cc"])

    def test_knows_a_file_by_the_name_that_it_has_today_and_only_so_many_commits(self):
        self.write("a.cc", '#include "a.h"\n' + LINES.replace("line_3", "third"))
        self.commit()
        self.git("mv", "a.cc", "later.cc")
        self.commit()
        self.write("e.cc", "gone")
        self.git("rm", "--quiet", "--cached", "e.cc")
        (self.path / "e.cc").unlink()
        self.commit()
        self.assertEqual(self.changed(3), ("the last 3 commits", ["later.cc"]))
        self.assertEqual(self.changed(2)[1], [])

    def test_what_is_not_committed_counts(self):
        self.write("b.h", "int other();\n")
        self.write("new.cc", "int more();\n")
        self.write("e.cc", '#include "e.h"\n' + LINES)
        self.commit()
        self.write("a.cc", "int changed();\n")
        self.write("newer.cc", "int more();\n")
        self.assertEqual(self.changed(1)[1], ["a.cc", "b.h", "new.cc", "newer.cc"])

    def test_a_clone_without_history_has_nothing_to_compare_with(self):
        for name in ("a", "b"):
            self.write(f"{name}.cc", "int changed();\n")
            self.commit()
        for depth, expected in ((1, ["all"]), (2, ["b.cc"])):
            clone = self.path.parent / f"depth{depth}"
            self.git("clone", "--quiet", f"--depth={depth}", f"file://{self.path}", str(clone))
            self.assertEqual(self.changed(50, clone)[1], expected)


class Choice(unittest.TestCase):
    def test_shows_each_changed_header_in_two_sources_its_own_first(self):
        sys.path.insert(0, str(TOOLS))
        from changed_files import choose_sources
        included = {"a.cc": {"a.cc", "a.h"}, "b.cc": {"b.cc", "a.h", "b.h"},
                    "c.cc": {"c.cc", "a.h", "b.h", "c.h"}, "d.cc": {"d.cc", "a.h"}}
        self.assertEqual(choose_sources(included, {"d.cc"}), ({"d.cc"}, []))
        self.assertEqual(choose_sources(included, {"a.h"}), ({"a.cc", "d.cc"}, []))
        self.assertEqual(choose_sources(included, {"b.h", "a.h"}), ({"b.cc", "c.cc"}, []))
        self.assertEqual(choose_sources(included, {"c.h", "x.h"}), ({"c.cc"}, ["x.h"]))


if __name__ == "__main__":
    unittest.main()
