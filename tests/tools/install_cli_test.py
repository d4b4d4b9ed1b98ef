"""What `cmake --install` leaves: programs and tools that work wherever their prefix is.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from sluice_program import HAS_ENGINE, Program, SLUICE

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import tool_packages  # noqa: E402
from toolbox import Failure  # noqa: E402

PROGRAMS = {"sluice", "aio_bench", "adam_bench", "swap_bench", "checkpoint_bench", "libsluice_mpi.so",
            *(("sluice-engine", "model_bench", "step_bench") if HAS_ENGINE else ())}


@unittest.skipUnless(shutil.which("cmake"), "cmake is not there")
class Install(Program):
    def install(self, component, code=0, **environment):
        build = Path(SLUICE).resolve().parents[1]
        done = subprocess.run(["cmake", "--install", build, "--prefix", self.path / "x",
                               "--component", component], check=False, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, env={**os.environ, **environment})
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def test_programs_that_are_built_look_for_libraries_beside_themselves_alone(self):
        if not shutil.which("readelf"):
            self.skipTest("readelf is not there")
        self.install("programs")
        names = sorted(PROGRAMS & set(os.listdir(Path(SLUICE).resolve().parent)))
        self.assertEqual(sorted(os.listdir(self.path / "x/bin")), names)
        for name in names:
            shown = subprocess.run(["readelf", "-d", self.path / "x/bin" / name], check=True,
                                   capture_output=True, text=True).stdout
            for folders in re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", shown):
                for folder in folders.split(":"):
                    self.assertRegex(folder, r"\A\$ORIGIN/\.\./lib/sluice/")

    def test_configuring_says_that_mpirun_is_left_out_and_why(self):
        shown = subprocess.run(
            ["cmake", "-S", ROOT, "-B", self.path / "build", "-DSLUICE_TORCH=OFF", "-DSLUICE_CUDA=off",
             "-DSLUICE_TESTS=OFF", "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON"], check=True,
            capture_output=True, text=True).stdout
        self.assertRegex(shown, r"mpirun.*mpi\.h.*libopenmpi-dev")

    @unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
    def test_a_prefix_that_was_moved_prepares_trains_and_generates(self):
        for component in ("programs", "scripts", "shells"):
            self.install(component)
        self.install("libraries", CMAKE_INSTALL_MODE="ABS_SYMLINK")  # copies take 3.6 GB
        self.install("Unspecified")
        (self.path / "x").rename(self.path / "moved")
        self.assertFalse((self.path / "x").exists())
        program = self.path / "moved/bin/sluice"
        self.assertFalse(program.is_symlink())

        def run(*command):
            done = subprocess.run([str(it) for it in command], cwd=self.path, check=False, text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=240)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout
        self.write("text.txt", "the cat sat on the mat, and the dog sat on the log. " * 60)
        prepare = self.path / "moved/share/sluice/tools/prepare"
        try:
            tool_packages.provide()
        except Failure as failure:
            self.skipTest(f"no tokenizers package: {failure}")
        run(sys.executable, "-B", prepare, "text.txt", "--tokenizer", "bpe", "--vocab-size", "280",
            "--out", "corpus")
        self.write("run.json", {
            "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
            "model": {"layers": 1, "hidden": 32, "heads": 2, "context": 16, "vocab": 280},
            "data": {"train": ["corpus/train.bin"]},
            "run": {"steps": 2, "cpu_threads": 1, "device": "cpu"}})
        run(program, "train", "run.json", "--out", "run", "--quiet")
        self.assertIn("the cat", run(program, "data", "corpus/train.bin", "--plain").replace("[", ""))
        self.assertTrue(run(program, "generate", "run", "--prompt", "the cat", "--tokens", 4))
        shutil.rmtree(self.path / "moved/share")
        # Outside of the sources: a program below them would find their tools/tokens.
        with tempfile.TemporaryDirectory(prefix="sluice-prefix-") as away:
            shutil.move(self.path / "moved", away)
            said = subprocess.run([f"{away}/moved/bin/sluice", "generate", "run", "--prompt", "the"],
                                  cwd=self.path, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, check=False).stderr
        self.assertRegex(said, "tools/tokens .*moved/bin/sluice-engine: install ")


if __name__ == "__main__":
    unittest.main()
