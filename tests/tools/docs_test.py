"""tools/docs: the site is built without a finding, and what it checks is found where it is wrong.

SLUICE is the program that the pages describe.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))

import tool_packages
from docs_parts import fences, links, markdown, pages, program, site
from toolbox import Failure

SLUICE = Path(os.environ["SLUICE"])
HAS_ENGINE = os.environ.get("SLUICE_HAS_ENGINE") == "1"


def tool(*arguments):
    return subprocess.run([sys.executable, "-B", str(ROOT / "tools/docs"), *map(str, arguments)],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=840, check=False)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-docs-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch: commands that the pages describe lack")
class Site(InFolder):
    @classmethod
    def setUpClass(cls):
        if not tool_packages.has(tool_packages.DOCS):
            raise unittest.SkipTest("no mkdocs: tools/setup --for=test fetches it")

    def test_replaces_no_files_of_others(self):
        self.write("site/index.html", "mine")
        result = tool("--out", self.folder, "--program", SLUICE)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("has other files", result.stdout)
        self.assertEqual((self.folder / "site/index.html").read_text(encoding="utf-8"), "mine")

    def test_is_built_and_no_link_command_or_key_is_wrong(self):
        result = tool("--out", self.folder, "--program", SLUICE)
        self.assertEqual(result.returncode, 0, result.stdout)
        made = self.folder / "site"
        for page, heading in (("index", "where-to-start"), ("command-line", "sluice-train"),
                              ("configuration", "run.steps"), ("metrics", "eventsjsonl"),
                              ("architecture", "data-model"), ("decisions/index", None)):
            text = (made / f"{page}.html").read_text(encoding="utf-8")
            if heading:
                self.assertIn(f'id="{heading}"', text, page)
            self.assertNotIn("https://fonts.", text)
            self.assertNotIn('src="http', text)
        self.assertIn("run.steps", (made / "search/search_index.json").read_text(encoding="utf-8"))


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Quickstart(InFolder):
    def test_works_from_the_root_of_a_built_checkout(self):
        """All of it, though with fewer steps, which take most of its minutes."""
        page = ROOT / "docs/quickstart.md"
        script, count = re.subn(r'"steps": \d+', '"steps": 2', fences.script_of(
            page.read_text(encoding="utf-8")))
        self.assertGreaterEqual(count, 1)
        self.assertIn("sluice train", script)
        listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others",
                                  "--exclude-standard"], cwd=ROOT, stdout=subprocess.PIPE,
                                 text=True, check=True).stdout
        for name in filter(None, listing.split("\0")):
            if name.split("/")[0] in ("configs", "tools", "python", "docs") and \
                    (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)
        (self.folder / "build").mkdir()
        (self.folder / "build/bin").symlink_to(SLUICE.parent)
        process = subprocess.Popen(["bash", "-e", "-o", "pipefail", "-x", "-c", script],
                                   cwd=self.folder, stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            output = process.communicate(timeout=840)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = process.communicate()[0]
        self.assertEqual(process.returncode, 0, output[-8000:])


class Links(InFolder):
    def test_lead_to_files_and_headings(self):
        self.write("README.md", """\
            # One
            ## A `b` & _c_: d_e
            [a](docs/a.md#second) ![](docs/a.png) [b](#a-b--c-d_e) [c](https://example.org/x#y)
            [d](docs/b.md) [e](docs/a.md#third) `[f](none.md)` [g][ref] <img src="docs/c.svg">
            [h](docs/made.md) [i](../out.md) [j](docs/a.md#second-1)

            ```text
            [k](none.md)
            ```

            [ref]: docs/d.md
            """)
        self.write("docs/a.md", "# First\n## Second\n[up](../README.md#one) [made](made.md#x)\n"
                                "## Second\n")
        self.write("docs/a.png", "")
        wrong = list(links.broken(["README.md", "docs/a.md"], {"docs/made.md"}, self.folder))
        self.assertEqual(sorted(wrong), [
            "README.md:11: the link docs/d.md leads to no file",
            "README.md:4: docs/a.md has no heading #third",
            "README.md:4: the link docs/b.md leads to no file",
            "README.md:4: the link docs/c.svg leads to no file",
            "README.md:5: docs/made.md is made with the site and is not in the repository",
            "README.md:5: the link ../out.md leads to no file"])

    def test_are_of_the_site_in_the_site(self):
        text = ("[a](docs/data.md#x) [b](bench/README.md) [README](swap/README.md) [c](#d)\n"
                "[`swap/README.md`](swap/README.md) ![p](docs/p.svg)\n\n"
                "```sh gpu\n[x](docs/y.md)\n```\n")
        self.assertEqual(site.for_site("ARCHITECTURE.md", text),
                         "[a](data.md#x) b (`bench/README.md`) README (`swap/README.md`) [c](#d)\n"
                         "`swap/README.md` ![p](p.svg)\n\n"
                         '```{ .sh title="Needs a GPU" }\n[x](docs/y.md)\n```\n')
        text = "[a](../../ARCHITECTURE.md#b) [c](d.md)"
        self.assertEqual(site.for_site("docs/decisions/a.md", text),
                         "[a](../architecture.md#b) [c](d.md)\n")


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.checker = fences.Checker(program.Program(SLUICE))

    def wrong(self, fence, mark=""):
        return [what.split(": ", 1)[1] for what in
                self.checker.page("a.md", f"```sh{' ' + mark if mark else ''}\n{fence}\n```\n")]

    def test_name_programs_commands_options_and_keys_that_exist(self):
        self.assertEqual(self.wrong("""\
            # a comment, with sluice none --no
            build/bin/sluice --io-watchdog 5 config configs/demo.json --set run.steps=100 \\
                --set=budget.cpu_gib=4 --verbose   # as --no is not read
            X=1 build/bin/sluice ls runs/demo --json | grep 'sluice none' > out.txt && cat out.txt
            tools/prepare books/ --out data --vocab-size 512; python3 python/examples/none.py
            cat > out/a.py <<'EOF'
            sluice none --no
            EOF
            python3 out/a.py"""),
                         ["there is no python/examples/none.py"])

    def test_are_wrong_otherwise(self):
        for command, what in (
                ("sluice trian x", "sluice has no command trian"),
                ("sluice config --jsn", "sluice config has no option --jsn"),
                ("sluice --jsn config", "sluice has no option --jsn"),
                ("sluice config \\\n  --set run.stepz=1", "a run file has no key run.stepz"),
                ("timeout 5 sluice ls --veryfy a", "sluice ls has no option --veryfy"),
                ("tools/prepare --vocab 3", "tools/prepare has no option --vocab"),
                ("build/bin/none --x", "there is no program build/bin/none")):
            for mark in ("", "example"):
                self.assertEqual(self.wrong(command, mark), [what])

    def test_may_need_other_programs_only_where_they_are_marked(self):
        self.assertRegex(self.wrong("no_such_program x")[0], "no program no_such_program")
        self.assertEqual(self.wrong("no_such_program x", "gpu"), [])
        self.assertIn("gpu, download, example", self.wrong("ls", "fast")[0])
        self.assertIn("write ```sh", list(self.checker.page("a.md", "```bash\nls\n```\n"))[0])

    def test_in_sentences_are_checked_too(self):
        text = ("Run `sluice config --jsn`, set `run.stepz`; `run.steps`, `sluice x` and "
                "`run.json`.\n")
        self.assertEqual([what.split(": ", 1)[1] for what in self.checker.page("a.md", text)],
                         ["sluice config has no option --jsn", "a run file has no key run.stepz",
                          "sluice has no command x"])

    def test_that_are_not_marked_are_a_pages_script(self):
        self.assertEqual(fences.script_of("```sh\na\n```\n```sh gpu\nb\n```\n- x\n\n    ```sh\n"
                                          "    c\n      d\n    ```\n"), "a\nc\n  d\n")


class Pages(unittest.TestCase):
    def test_of_help_have_every_option(self):
        told = program.parse_help(textwrap.dedent("""\
            Do it
            Usage: sluice do [options] FILE

            Positionals:
              FILE TEXT REQUIRED      The file

            Options:
              -h,--help               Print this help message and exit
              -o,--out TEXT Needs: --keep
                                      Where it goes
              --keep{all} Excludes: --out --other
                                      What stays
              --gpus UINT:INT in [1 - 64]
                                      How many
              --force Needs: --out    Replaces it

              sluice do x
            Remarks."""))
        self.assertEqual([[(it.names, it.value, it.meaning) for it in section.options]
                          for section in told.sections],
                         [[(("FILE",), "TEXT REQUIRED", "The file")],
                          [(("-h", "--help"), "", "Print this help message and exit"),
                           (("-o", "--out"), "TEXT", "Where it goes"),
                           (("--keep",), "[=all]", "What stays"),
                           (("--gpus",), "UINT:INT in [1 - 64]", "How many"),
                           (("--force",), "", "Replaces it")]])
        self.assertEqual(told.sections[1].options[2].rules, {"Excludes": ["--out", "--other"]})
        self.assertEqual(told.lines, ["  sluice do x", "Remarks."])

    def test_have_every_command_option_and_key_of_the_program(self):
        sluice = program.Program(SLUICE)
        made = pages.make(sluice)
        self.assertEqual(set(made), set(pages.NAMES))
        anchors = markdown.anchors_of(made["command-line.md"])
        for command in sluice.commands():
            self.assertIn(f"sluice-{command}", anchors)
            for name in sluice.option_names(command) - {"-h", "--help"}:
                self.assertRegex(made["command-line.md"],
                                 name if sluice.is_script(command) else f"`{name}[`\\[]")
        keys = sluice.keys()
        self.assertGreater(len(keys), 200)
        self.assertLessEqual({key.path for key in keys},
                             markdown.anchors_of(made["configuration.md"]))

    def test_show_what_the_program_says(self):
        self.assertEqual(pages.escaped("a *b* [1] <c> with --out, run.steps or _x"),
                         r"a \*b\* \[1\] &lt;c&gt; with `--out`{ .option }, `run.steps` or \_x")
        self.assertEqual(pages.escaped('"a|b" or | ', in_table=True), r'"a\|b" or \| ')


if __name__ == "__main__":
    unittest.main()
