"""Files that Hugging Face's safetensors wrote are read by ours, and ours by it, bit for bit.

The program is the environment's SAFETENSORS_COPY. This runs in the first Python that has the
library: this one, TORCH_PYTHON (the one whose torch the build uses), or one of those that
tools/setup keeps in the cache folder. What the numbers should become is computed here, from their
bits; where torch is installed as well, torch's own casts have to agree.
"""

import glob
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import safetensors
except ImportError:
    safetensors = None
try:
    import torch
except ImportError:
    torch = None

COPY = os.path.abspath(os.environ.get("SAFETENSORS_COPY", "build/bin/safetensors_copy"))
TRIED = "SLUICE_SAFETENSORS_TRIED"

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
CODES = {"F64": "d", "F32": "f", "F16": "e"}
# safetensors' serialize() has names of its own for them.
LONG_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def other_pythons():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    yield os.environ.get("TORCH_PYTHON", "")
    yield from sorted(glob.glob(os.path.join(cache, "sluice", "venv-*", "bin", "python")))


def run_where_the_library_is():
    """Replaces this process where another Python has the library."""
    for python in other_pythons():
        if python and os.path.exists(python) and subprocess.run(
                [python, "-c", "import safetensors"], capture_output=True, check=False
        ).returncode == 0:
            os.environ[TRIED] = "1"
            os.execv(python, [python, "-B", *sys.argv])


def fp32_round(value):
    """The nearest fp32 of a float, as a float."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def bf16_bits(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    kept, rest = bits >> 16, bits & 0xFFFF
    if rest > 0x8000 or (rest == 0x8000 and kept & 1):
        kept += 1
    return kept


def encode(dtype, values):
    """fp32 numbers (no NaN) as the bytes of a dtype."""
    if dtype == "BF16":
        return b"".join(struct.pack("<H", bf16_bits(value)) for value in values)
    result = b""
    for value in values:
        try:
            result += struct.pack("<" + CODES[dtype], value)
        except OverflowError:  # beyond fp16's range
            result += struct.pack("<e", float("inf") if value > 0 else float("-inf"))
    return result


def decode(dtype, data):
    """The bytes of a dtype as fp32 numbers."""
    if dtype == "BF16":
        words = struct.unpack(f"<{len(data) // 2}H", data)
        return [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words]
    values = struct.unpack(f"<{len(data) // BYTES[dtype]}{CODES[dtype]}", data)
    return [fp32_round(value) for value in values] if dtype == "F64" else list(values)


def random_value(source):
    kind = source.random()
    if kind < 0.05:
        return source.choice([0.0, -0.0, float("inf"), float("-inf"), 65520.0, -65519.0, 3.39e38,
                              2.0**-24, 2.0**-25, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11])
    if kind < 0.5:
        return fp32_round(source.gauss(0, 1))
    return fp32_round(source.choice([-1, 1]) * 2.0**source.uniform(-149, 127))


def make_tensors(seed):
    source = random.Random(seed)
    tensors = {}
    shapes = [[], [1], [17], [33, 65], [5, 0, 3], [4097], [2, 3, 4, 5]]
    for i, shape in enumerate(shapes * 2):
        dtype = ("F64", "F32", "F16", "BF16")[i % 4]
        count = 1
        for length in shape:
            count *= length
        data = encode(dtype, [random_value(source) for _ in range(count)])
        tensors[f"h.{i}.größe"] = {"dtype": LONG_NAMES[dtype], "shape": shape, "data": data}
    return tensors


def load(path):
    """name -> (dtype, shape, bytes), by Hugging Face's library."""
    loaded = safetensors.deserialize(Path(path).read_bytes())
    return {name: (entry["dtype"], entry["shape"], bytes(entry["data"]))
            for name, entry in loaded}


def copy(*words):
    result = subprocess.run([COPY, *map(str, words)], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(f"code {result.returncode}: {result.stderr.strip()}")


@unittest.skipIf(safetensors is None, "no Python here has the package safetensors: it is not "
                                      "compared with Hugging Face's library")
class AgainstPython(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.getcwd())
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def written_there(self, seed):
        path = self.folder / "in.safetensors"
        tensors = make_tensors(seed)
        path.write_bytes(safetensors.serialize(tensors, {"format": "pt", "seed": str(seed)}))
        return path, load(path)

    def check(self, original, copied, dtype):
        self.assertEqual(set(original), set(copied))
        for name, (from_dtype, shape, data) in original.items():
            to_dtype, to_shape, to_data = copied[name]
            self.assertEqual((to_dtype, to_shape), (dtype, shape), name)
            self.assertEqual(to_data, encode(dtype, decode(from_dtype, data)), name)

    def test_every_dtype_to_every_dtype(self):
        for seed, dtype in enumerate(BYTES):
            path, original = self.written_there(seed)
            for pass_length in (100, 10**6):
                with self.subTest(dtype=dtype, pass_length=pass_length):
                    out = self.folder / "out.safetensors"
                    copy(path, out, dtype, 0, pass_length)
                    self.check(original, load(out), dtype)

    def test_shards_with_an_index(self):
        path, original = self.written_there(9)
        copy(path, self.folder / "model.safetensors", "F32", 20_000, 1000)
        shards = sorted(self.folder.glob("model-*-of-*.safetensors"))
        self.assertGreater(len(shards), 2)
        copied = {}
        for shard in shards:
            self.assertFalse(set(copied) & set(load(shard)))
            copied.update(load(shard))
        self.check(original, copied, "F32")
        back = self.folder / "back.safetensors"  # the set as one file again
        copy(self.folder, back, "F32", 0, 777)
        self.assertEqual(load(back), copied)

    @unittest.skipIf(torch is None, "this Python has no torch")
    def test_torch_loads_and_rounds_the_same(self):
        from safetensors.torch import load_file
        types = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
                 "BF16": torch.bfloat16}
        path, _ = self.written_there(4)
        source = load_file(path)
        for name, dtype in types.items():
            out = self.folder / "out.safetensors"
            copy(path, out, name, 0, 1000)
            copied = load_file(out)
            for key, tensor in source.items():
                expected = tensor.to(torch.float32).to(dtype)
                self.assertEqual(copied[key].dtype, dtype)
                self.assertTrue(torch.equal(copied[key].reshape(-1).view(torch.uint8),
                                            expected.reshape(-1).view(torch.uint8)), key)


if __name__ == "__main__":
    if safetensors is None and TRIED not in os.environ:
        run_where_the_library_is()
    unittest.main()
