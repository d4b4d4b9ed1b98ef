"""tools/setup and other tools on machines that lack some packages.

A copy of tools/ runs with a PATH of its own, where stand-ins for dpkg-query and apt-get describe
another machine; nothing is installed.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"
# For commands that must not run as root; None: this user.
OTHER_USER = 65534 if os.geteuid() == 0 else None


class Machine(unittest.TestCase):
    """A folder with a copy of tools/, and a PATH that contains only what a test adds."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="sluice-tools-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.folder.chmod(0o755)
        shutil.copytree(TOOLS, self.folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        self.path = self.folder / "bin"
        self.path.mkdir()
        self.home = self.folder / "home"
        self.home.mkdir()

    def program(self, name, script):
        path = self.path / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)

    def run_tool(self, tool, *arguments, user=None, **environment):
        # Other users may not be able to read root's own interpreter.
        python = sys.executable if user is None else "/usr/bin/python3"
        identity = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        return subprocess.run(
            [python, "-B", str(self.folder / "tools" / tool), *arguments], cwd=self.folder,
            env={"PATH": str(self.path), "HOME": str(self.home), **environment},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            timeout=120, check=False, **identity)


class CommandLine(Machine):
    def setUp(self):
        super().setUp()
        for name in ("dirname", "cat"):
            (self.path / name).symlink_to(shutil.which(name))

    def test_refuses_what_it_does_not_know_with_one_sentence(self):
        for tool, arguments in (("setup", ["--torch"]), ("setup", ["--cuda=maybe"]),
                                ("setup", ["--jobs", "0"]), ("setup", ["--jobs=-1"]),
                                ("setup", ["--preset", "fast"]), ("setup", ["--for=fun"]),
                                ("setup", ["now"]), ("test", ["--quick"]),
                                ("test", ["--jobs=many"]), ("lint", ["--every"]),
                                ("trace_summary", []), ("trace_summary", ["a", "b"]),
                                ("demo", ["--fast"]), ("demo", ["--steps", "none"]),
                                ("docs", ["make"]), ("docs", ["build", "docs/index.md"]),
                                ("docs", ["script"]), ("docs", ["--address", "8000"])):
            with self.subTest(tool=tool, arguments=arguments):
                result = self.run_tool(tool, *arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertRegex(result.stderr, rf"\Atools/{tool}: .* --help .*\n\Z")
                self.assertEqual(result.stdout, "")

    def test_explains_itself(self):
        for tool in ("setup", "test", "lint", "demo", "docs", "trace_summary"):
            with self.subTest(tool=tool):
                result = self.run_tool(tool, "--help")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn(f"usage: tools/{tool}", result.stdout)


class Lint(Machine):
    def test_names_comments_that_are_too_wide(self):
        (self.path / "git").symlink_to(shutil.which("git"))
        self.program("clang-format-14", "exit 0")
        subprocess.run(["git", "init", "--quiet", str(self.folder)], check=True)
        for name, comment in (("fits.h", "x" * 97), ("wide.h", "x" * 98), ("code.h", None)):
            line = f'char text[] = "{"x" * 100}";' if comment is None else f"// {comment}"
            (self.folder / name).write_text(f"#pragma once\n{line}\n", encoding="ascii")
        result = self.run_tool("lint")
        self.assertEqual(result.returncode, 1)
        self.assertIn("\nwide.h:2: ", "\n" + result.stdout)
        self.assertNotIn("fits.h", result.stdout)
        self.assertNotIn("code.h", result.stdout)

    def test_names_sentences_of_pages_that_are_read_twice(self):
        for name in ("git", "sh", "bash"):
            (self.path / name).symlink_to(shutil.which(name))
        self.program("clang-format-14", "exit 0")
        subprocess.run(["git", "init", "--quiet", str(self.folder)], check=True)
        counts = self.folder / "tools/docs_parts/prose_counts.json"
        counts.write_text('{"a.md": 1, "docs/*.md": 0}', encoding="ascii")
        (self.folder / "a.md").write_text("Of this.\n\n```text\nOf code.\n```\n", encoding="ascii")
        result = self.run_tool("lint", "--quick")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("prose: 1 files", result.stdout)
        (self.folder / "a.md").write_text("Of this.\n\nIt lies there.\n", encoding="ascii")
        result = self.run_tool("lint", "--quick")
        self.assertEqual(result.returncode, 1)
        self.assertIn('\na.md:1: a sentence begins with "Of"', result.stdout)
        self.assertIn('\na.md:3: "lies": write ', result.stdout)
        (self.folder / "a.md").write_text("This.\n", encoding="ascii")
        self.assertEqual(self.run_tool("lint", "--quick").returncode, 1)
        self.assertEqual(self.run_tool("lint", "--quick", "--fix").returncode, 0)
        self.assertIn('"a.md": 0', counts.read_text(encoding="ascii"))


class Packages(Machine):
    def setUp(self):
        super().setUp()
        # All are installed except liburing-dev, spdlog (known, removed) and the compiler.
        self.program("dpkg-query", """for name; do case $name in
            -*|*{*|liburing-dev|build-essential) ;;
            libspdlog-dev) echo "$name config-files" ;;
            *) echo "$name installed" ;; esac; done; exit 1""")
        self.line = ("apt-get install --yes --no-install-recommends build-essential liburing-dev "
                     "libspdlog-dev")

    def test_without_root_prints_the_line_that_is_missing(self):
        result = self.run_tool("setup", "--no-torch", user=OTHER_USER)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"  sudo apt-get update && sudo {self.line}\n", result.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "only root installs")
    def test_as_root_installs_it_and_says_what_to_do_when_that_fails(self):
        self.program("apt-get", f'echo "$DEBIAN_FRONTEND $*" >> {self.folder}/calls; exit 100')
        result = self.run_tool("setup", "--no-torch")
        self.assertEqual(result.returncode, 1)
        calls = (self.folder / "calls").read_text(encoding="ascii").splitlines()
        self.assertEqual(len(calls), 2, calls)
        self.assertRegex(calls[0], r"\Anoninteractive .* update\Z")
        self.assertRegex(calls[1], r"\Anoninteractive .* install --yes --no-install-recommends "
                                   r"build-essential liburing-dev libspdlog-dev\Z")
        self.assertIn("build-essential liburing-dev libspdlog-dev",
                      result.stderr)

    def test_takes_a_program_on_the_path_for_its_package(self):
        self.program("g++", "exit 0")
        result = self.run_tool("setup", "--no-torch", user=OTHER_USER)
        self.assertIn("--no-install-recommends liburing-dev libspdlog-dev\n", result.stderr)

    def test_says_what_to_do_on_another_distribution(self):
        (self.path / "dpkg-query").unlink()
        result = self.run_tool("setup", "--no-torch")
        self.assertEqual(result.returncode, 1)
        self.assertIn("--no-packages: build-essential cmake", result.stderr)


class LibTorch(Machine):
    def test_leaves_nothing_behind_where_it_could_not_be_fetched(self):
        version = f"py{sys.version_info.major}.{sys.version_info.minor}"
        venv = self.home / ".cache/sluice" / f"venv-torch-2.11.0-{version}"
        (venv / "lib").mkdir(parents=True)  # a killed set-up leaves no stamp
        (venv / "lib/half.so").touch()
        result = self.run_tool("setup", "--no-packages", PIP_NO_INDEX="1",
                               PIP_CONFIG_FILE=os.devnull)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertRegex(result.stderr, "pip could not install LibTorch|GB are free there")
        self.assertFalse((venv / "lib/half.so").exists())
        self.assertFalse(venv.exists() and (venv / ".complete").exists())

    def test_takes_a_libtorch_of_the_user(self):
        own = self.folder / "libtorch"
        (own / "share/cmake/Torch").mkdir(parents=True)
        (own / "share/cmake/Torch/TorchConfig.cmake").touch()
        (self.folder / "CMakePresets.json").write_text("{}", encoding="ascii")
        self.program("cmake", f'echo "$*" > {self.folder}/calls; exit 1')
        result = self.run_tool("setup", "--no-packages", CMAKE_PREFIX_PATH=f"/none:{own}")
        self.assertIn(f"LibTorch: yours, in {own}", result.stdout)
        self.assertIn("CMake could not configure", result.stderr)
        self.assertIn("-DSLUICE_TORCH=ON -DSLUICE_VENV= -DSLUICE_CUDA=auto",
                      (self.folder / "calls").read_text(encoding="ascii"))
        self.assertFalse((self.home / ".cache").exists())

    def architectures(self, *arguments):
        """The last words that CMake is given, and what was said."""
        (self.folder / "CMakePresets.json").write_text("{}", encoding="ascii")
        self.program("cmake", f'echo "$*" > {self.folder}/calls; exit 1')
        result = self.run_tool("setup", "--no-packages", "--no-torch", *arguments)
        return (self.folder / "calls").read_text(encoding="ascii").split(), result.stdout

    def test_compiles_kernels_for_the_card_that_is_there(self):
        self.program("nvcc", "exit 1")
        words, said = self.architectures()  # no GPU
        self.assertIn("-UCMAKE_CUDA_ARCHITECTURES", words)
        self.assertNotIn("CUDA kernels", said)
        self.program("nvidia-smi", "echo 8.9; echo 12.0; echo 8.9; echo '[N/A]'")
        words, said = self.architectures()
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES=89;120", words)
        self.assertIn("89, 120", said)
        words, said = self.architectures("--cuda-architectures", "all")
        self.assertIn("-UCMAKE_CUDA_ARCHITECTURES", words)
        words, said = self.architectures("--cuda-architectures=75,90-real")
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES=75;90-real", words)
        self.program("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
        words, said = self.architectures()
        self.assertIn("-UCMAKE_CUDA_ARCHITECTURES", words)

    def test_refuses_architectures_that_are_none(self):
        result = self.run_tool("setup", "--no-packages", "--no-torch",
                               "--cuda-architectures=hopper")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "'hopper'.*auto, all")

    @unittest.skipUnless(shutil.which("cmake"), "cmake is not there")
    def test_a_wheel_is_built_for_the_torch_that_its_python_imports(self):
        torch = self.folder / "elsewhere/torch"
        (torch / "share/cmake/Torch").mkdir(parents=True)
        (torch / "share/cmake/Torch/TorchConfig.cmake").touch()
        (torch / "__init__.py").write_text("raise ImportError('only found')", encoding="ascii")
        project = self.folder / "project"
        project.mkdir()
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(found LANGUAGES NONE)\n"
            f"include({TOOLS.parent}/cmake/Torch.cmake)\n"
            'message(STATUS "for ${SLUICE_TORCH_PYTHON}")\n', encoding="ascii")
        venv = self.folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)

        def configure():
            shutil.rmtree(project / "build", ignore_errors=True)
            return subprocess.run(
                [shutil.which("cmake"), "-S", project, "-B", project / "build", "-DSKBUILD=2",
                 f"-DPython3_EXECUTABLE={venv}/bin/python"], stdin=subprocess.DEVNULL,
                env={"PATH": os.environ["PATH"], "HOME": str(self.home)}, text=True, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        lacking = configure()
        self.assertNotEqual(lacking.returncode, 0)
        said = " ".join(lacking.stdout.split())
        self.assertRegex(said, f"torch was not.*{venv}/bin/python")
        self.assertIn("pip install --no-build-isolation .", said)
        (site,) = venv.glob("lib/python3.*/site-packages")
        (site / "others.pth").write_text(f"{torch.parent}\n", encoding="ascii")
        found = configure()
        self.assertEqual(found.returncode, 0, found.stdout)
        self.assertIn(f"unknown version), {torch}\n", found.stdout)
        self.assertIn(f"for {venv}/bin/python\n", found.stdout)


class EndsWithParent(unittest.TestCase):
    def ends(self, parents, parent):
        """How a process ends that gets these parent pids, one per call."""
        code = (
            "import os, toolbox\n"
            f"parents = iter({parents})\n"
            "os.getppid = lambda: next(parents)\n"
            f"toolbox.end_with_parent({parent})\n"
        )
        return subprocess.run([sys.executable, "-B", "-c", code], cwd=TOOLS, check=False).returncode

    def test_and_not_for_having_process_1_as_its_parent(self):
        self.assertEqual(self.ends([1, 1, 1], None), 0)
        self.assertEqual(self.ends([1, 1, 1], 1), 0)
        self.assertEqual(self.ends([7, 1, 1], None), 1)
        self.assertEqual(self.ends([1, 1, 1], 7), 1)


class OneProgram(Machine):
    def setUp(self):
        super().setUp()
        (self.folder / "CMakePresets.json").write_text("{}", encoding="ascii")
        (self.folder / "build").mkdir()
        self.program("cmake", f'echo "$*" >> {self.folder}/calls')

    def build(self, name):
        return self.run_tool("setup", "--no-packages", "--no-torch", "--jobs", "2", "--program",
                             name)

    def test_is_built_alone_and_how_long_that_takes_is_said_before(self):
        self.program("ninja", 'for i in 1 2 349; do echo "[$i/349] Building CXX object"; done')
        result = self.build("sluice")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("building sluice in build/ with 2 jobs, which takes about 11 minutes where "
                      "nothing is cached\n", result.stdout)
        calls = (self.folder / "calls").read_text(encoding="ascii").splitlines()
        self.assertRegex(calls[-1], r"\A--build .*/build --parallel 2 --target sluice\Z")

    def test_that_there_is_not_is_refused_before_anything_is_built(self):
        self.program("ninja", "echo \"ninja: error: unknown target 'slice', did you mean "
                              "'sluice'?\"; exit 1")
        result = self.build("slice")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "--program:.*slice in build/")
        calls = (self.folder / "calls").read_text(encoding="ascii").splitlines()
        self.assertEqual(len(calls), 1, calls)  # only that of the configuration


if __name__ == "__main__":
    unittest.main()
