"""The start script of an installed Sluice: which torch its programs are given, and what is said
where there is none that fits. Made of folders; no program runs but `env`."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[2] / "python"
TEMPLATE = (PACKAGES / "sluice/_build.py.in").read_text(encoding="utf-8")


def build_module(torch, folder):
    """sluice._build of a build for `torch`."""
    path = Path(folder) / "sluice/_build.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = TEMPLATE.replace("@PROJECT_VERSION@", "1.2.3").replace("@SLUICE_TORCH_VERSION@", torch)
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("_build_of_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="sluice-programs-"))
        self.addCleanup(shutil.rmtree, self.folder)


class Builds(Folder):
    def test_a_build_fits_the_torch_of_its_minor_release_and_cuda(self):
        for built, here, fits in (
            ("2.11.0+cu130", "2.11.0+cu130", True),
            ("2.11.0+cu130", "2.11.1+cu130", True),
            ("2.11.0+cu130", "2.11.0+cu132", True),  # one binary interface within CUDA 13
            ("2.11.0+cu130", "2.11.0+cu128", False),
            ("2.11.0+cu130", "2.11.0+cpu", False),
            ("2.11.0+cu130", "2.11.0", False),
            ("2.11.0+cu130", "2.12.0+cu130", False),
            ("2.11.0+cu130", "2.1.0+cu130", False),
            ("2.11.0+cu130", "2.11.0rc1+cu130", False),
            ("2.11.0a0+git12", "2.11.0a0+git12", True),
            ("2.11.0a0+git12", "2.11.0a0+git13", False),
            ("2.11.0+cpu", "2.11.1+cpu", True),
            ("2.11.0+cu130", "", False),
            ("2.11.0+cu130", None, False),
        ):
            problem = build_module(built, self.folder).problem_with(here)
            self.assertEqual(problem == "", fits, (built, here, problem))

    def test_the_sentence_says_what_to_run(self):
        build = build_module("2.11.0+cu130", self.folder)
        problem = build.problem_with("2.12.0+cu130")
        self.assertRegex(problem, r"2\.11\.0\+cu130.*2\.12\.0\+cu130")
        self.assertIn("pip install 'torch==2.11.*'", problem)
        self.assertIn("no torch is installed", build.problem_with(None))

        class Other:
            __version__ = "2.12.0+cu130"

        with self.assertRaisesRegex(ImportError, "2.12.0"):
            build.check_torch(Other)


class Start(Folder):
    """A site-packages folder whose `sluice` prints its environment."""

    def setUp(self):
        super().setUp()
        self.site = self.folder / "site"
        shutil.copytree(PACKAGES / "sluice_programs", self.site / "sluice_programs")
        build_module("2.11.0+cu130", self.site)
        self.program = self.site / "sluice_programs/bin/sluice"
        self.program.parent.mkdir()
        self.program.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            "print(json.dumps([sys.argv[1:], dict(os.environ)]))\nsys.exit(75)\n"
        )
        self.program.chmod(0o755)

    def torch(self, version, site=None):
        folder = (site or self.site) / "torch"
        (folder / "lib").mkdir(parents=True)
        (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
        (folder / "version.py").write_text(f"__version__ = '{version}'\n")
        (folder.parent / "nvidia/cu13/lib").mkdir(parents=True)

    def start(self, *words, path=(), **environment):
        paths = os.pathsep.join(map(str, [self.site, *path]))
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c",
             f"import sys; sys.path[:0] = {paths.split(os.pathsep)!r}\n"
             f"sys.argv = {['sluice', *words]!r}\nimport sluice_programs; sluice_programs.sluice()"],
            env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True,
            check=False, timeout=60)

    def test_becomes_the_program(self):
        self.torch("2.11.0+cu130")
        done = self.start("train", "--steps", "3 4")
        self.assertEqual(done.returncode, 75, done.stderr)  # the program's own
        words, environment = json.loads(done.stdout)
        self.assertEqual(words, ["train", "--steps", "3 4"])
        self.assertNotIn("SLUICE_TORCH_PROBLEM", environment)
        self.assertNotIn("LD_LIBRARY_PATH", environment)  # torch is where the program looks
        self.assertEqual(environment["PATH"].split(":")[0], str(Path(sys.executable).parent))

    def test_finds_a_torch_of_another_folder(self):
        other = self.folder / "other"
        self.torch("2.11.1+cu130", other)
        done = self.start("train", path=[other], LD_LIBRARY_PATH="/own")
        environment = json.loads(done.stdout)[1]
        self.assertEqual(environment["LD_LIBRARY_PATH"].split(":"),
                         [str(other / "torch/lib"), str(other / "nvidia/cu13/lib"), "/own"])

    def test_says_which_torch_does_not_fit(self):
        self.torch("2.12.0+cu130")
        environment = json.loads(self.start("ls", SLUICE_TORCH_PROBLEM="old").stdout)[1]
        self.assertIn("torch 2.12.0+cu130 is installed", environment["SLUICE_TORCH_PROBLEM"])
        shutil.rmtree(self.site / "torch")
        other = self.folder / "other"
        self.torch("2.13.0+cu130", other)
        environment = json.loads(self.start("doctor", path=[other]).stdout)[1]
        self.assertIn("torch 2.13.0+cu130 is installed", environment["SLUICE_TORCH_PROBLEM"])
        self.assertEqual(environment["LD_LIBRARY_PATH"].split(":")[0], str(other / "torch/lib"))
        environment = json.loads(self.start("ls").stdout)[1]
        self.assertIn("no torch is installed", environment["SLUICE_TORCH_PROBLEM"])

    def test_says_where_its_program_is_missing(self):
        self.torch("2.11.0+cu130")
        self.program.unlink()
        done = self.start("ls")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot be started", done.stderr)
        self.assertIn("pip install --force-reinstall", done.stderr)


class Problem(unittest.TestCase):
    @unittest.skipUnless(os.environ.get("SLUICE"), "needs the program")
    def test_a_command_that_needs_torch_says_it_and_ends(self):
        environment = {**os.environ, "SLUICE_TORCH_PROBLEM": "no torch fits: do this"}
        done = subprocess.run([os.environ["SLUICE"], "plan", "x.json"], env=environment,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "sluice: no torch fits: do this\n")
        done = subprocess.run([os.environ["SLUICE"], "metrics", "--keys"], env=environment,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
