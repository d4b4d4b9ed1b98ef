"""sluice/_core.pyi, for editors and type checkers, is what pybind11-stubgen makes of sluice._core.

stub_test.py --update writes it anew.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import sluice

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import reference_packages

STUB = Path(sluice.__file__).resolve().parent / "_core.pyi"
MISSING = None if reference_packages.is_complete() else "tools/setup --for=test fetches it"


def generated():
    paths = [os.environ.get("PYTHONPATH", ""), str(reference_packages.folder())]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-B", "-m", "pybind11_stubgen", "sluice._core",
                               "--exit-code", "-o", folder], capture_output=True, text=True,
                              check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
        if done.returncode != 0:
            raise AssertionError(f"pybind11-stubgen: {done.stdout}{done.stderr}")
        return (Path(folder) / "sluice/_core.pyi").read_text(encoding="utf-8")


@unittest.skipIf(MISSING, MISSING)
class Stub(unittest.TestCase):
    maxDiff = None

    def test_is_what_the_module_says(self):
        self.assertEqual(STUB.read_text(encoding="utf-8"), generated(),
                         f"\n{sys.executable} {__file__} --update writes it anew")


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        STUB.write_text(generated(), encoding="utf-8")
    else:
        unittest.main()
