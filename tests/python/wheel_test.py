"""The wheel: built like a user builds it, installed into an environment that has torch but nothing
of ours, and used without a compiler.

Compiles into build-wheel/, or into SLUICE_WHEEL_BUILD, which may be a build of the same kind.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import tool_packages  # noqa: E402

EXAMPLE = textwrap.dedent(
    """
    import shutil
    assert not any(shutil.which(it) for it in ("cc", "c++", "gcc", "g++", "clang", "nvcc", "cmake"))
    import torch
    import sluice, sluice.deepspeed
    assert sluice.__file__.startswith(PREFIX), sluice.__file__
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    }
    with sluice.initialize(module, config) as engine:
        losses = []
        for _ in range(20):
            loss = (engine(torch.ones(4, 8)) - 3).square().mean()
            engine.backward(loss)
            losses.append(engine.step().loss)
        engine.save_checkpoint("run")
    assert losses[-1] < losses[0], losses
    assert len(sluice.load("run")) == 4
    print("trained by", sluice.__version__)
    """
)


def run(command, **options):
    done = subprocess.run(
        [str(it) for it in command], capture_output=True, text=True, check=False, **options
    )
    if done.returncode != 0:
        raise AssertionError(f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


class Wheel(unittest.TestCase):
    def test_trains_where_there_is_no_compiler(self):
        site = tool_packages.folder_with(["scikit_build_core", "pathspec", "packaging"])
        environment = {**os.environ, "PYTHONPATH": str(site), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", "2")
        with tempfile.TemporaryDirectory(prefix="sluice-wheel-") as folder:
            path = Path(folder)
            pip = [sys.executable, "-m", "pip"]
            build = os.environ.get("SLUICE_WHEEL_BUILD")
            where = [f"-Cbuild-dir={build}"] if build else []
            run(
                [*pip, "wheel", "--no-build-isolation", "--no-deps", *where, "-w", path, ROOT],
                env=environment,
                cwd=path,
            )
            (wheel,) = path.glob("sluice-*.whl")
            names = zipfile.ZipFile(wheel).namelist()
            self.assertIn("sluice/_build.py", names)
            self.assertIn("sluice/deepspeed/engine.py", names)
            self.assertEqual([it for it in names if it.endswith((".in", ".h", ".cc"))], [])
            self.assertEqual(sum(it.endswith(".so") for it in names), 1)
            venv = path / "venv"
            run([sys.executable, "-m", "venv", "--without-pip", venv])
            python = venv / "bin/python"
            run([*pip, "--python", python, "install", "--no-deps", "--no-index", wheel])
            own = sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})
            (Path(own) / "torch_of_others.pth").write_text(sysconfig.get_path("purelib") + "\n")
            empty = path / "empty"
            empty.mkdir()
            said = run(
                [python, "-c", EXAMPLE.replace("PREFIX", repr(str(venv)))],
                cwd=path,
                env={"PATH": str(empty), "HOME": str(path)},
            )
            self.assertRegex(said, r"trained by \d+\.\d+")


if __name__ == "__main__":
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        print("skipped: a wheel is built by cmake and ninja")
        sys.exit(0)
    unittest.main()
