"""A checkpoint is a folder of weights that Hugging Face's safetensors reads, and its manifest says
what FORMAT.md says.

The program is the environment's CHECKPOINT_SAVE. Tensors are looked for through the index, as
transformers does it, and compared with values computed here. Checksums are recomputed where Python
has the package xxhash. This runs in the first Python that has safetensors: this one, TORCH_PYTHON
(the one whose torch the build uses), or one of those that tools/setup keeps in the cache folder.
"""

import glob
import json
import os
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
    import xxhash
except ImportError:
    xxhash = None

SAVE = os.path.abspath(os.environ.get("CHECKPOINT_SAVE", "build/bin/checkpoint_save"))
TRIED = "SLUICE_SAFETENSORS_TRIED"
FAMILIES = ("master", "exp_avg", "exp_avg_sq")
HIDDEN, CONTEXT, VOCABULARY, LAYERS = 48, 33, 101, 2
HASH_DOMAIN = 0x736C7563636B7074


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


def block_shapes():
    return {"ln_1.weight": [HIDDEN], "ln_1.bias": [HIDDEN],
            "attn.c_attn.weight": [HIDDEN, 3 * HIDDEN], "attn.c_attn.bias": [3 * HIDDEN],
            "attn.c_proj.weight": [HIDDEN, HIDDEN], "attn.c_proj.bias": [HIDDEN],
            "ln_2.weight": [HIDDEN], "ln_2.bias": [HIDDEN],
            "mlp.c_fc.weight": [HIDDEN, 4 * HIDDEN], "mlp.c_fc.bias": [4 * HIDDEN],
            "mlp.c_proj.weight": [4 * HIDDEN, HIDDEN], "mlp.c_proj.bias": [HIDDEN]}


def expected_shapes():
    shapes = {"wte.weight": [VOCABULARY, HIDDEN], "wpe.weight": [CONTEXT, HIDDEN],
              "ln_f.weight": [HIDDEN], "ln_f.bias": [HIDDEN]}
    for layer in range(LAYERS):
        shapes.update({f"h.{layer}.{name}": shape for name, shape in block_shapes().items()})
    return shapes


def values_of(family, parameter, elements):
    return [((7 * e + 13 * parameter + 101 * family) % 251 - 125) / 4 for e in range(elements)]


def names_in_order(path):
    """A file's tensor names in the order of their bytes, from its header."""
    data = path.read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    header.pop("__metadata__")
    return sorted(header, key=lambda name: header[name]["data_offsets"][0])


def load(path):
    """name -> (shape, values), by Hugging Face's library."""
    return {name: (entry["shape"],
                   list(struct.unpack(f"<{len(entry['data']) // 4}f", bytes(entry["data"]))))
            for name, entry in safetensors.deserialize(path.read_bytes())
            if entry["dtype"] == "F32"}


@unittest.skipIf(safetensors is None, "no Python here has the package safetensors: a checkpoint is "
                                      "not read by Hugging Face's library")
class AgainstPython(unittest.TestCase):

    def saved(self, max_shard_bytes):
        folder = tempfile.TemporaryDirectory(dir=os.getcwd())
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "checkpoints" / "step-000000005"
        result = subprocess.run([SAVE, path, str(max_shard_bytes)], capture_output=True, text=True,
                                check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return path

    def test_the_weights_load_through_the_index(self):
        for max_shard_bytes in (1 << 30, 60_000):
            path = self.saved(max_shard_bytes)
            index = json.loads((path / "model.safetensors.index.json").read_text())
            files = sorted(set(index["weight_map"].values()))
            self.assertEqual(len(files) > 1, max_shard_bytes < 1 << 30)
            loaded, order = {}, []
            for name in files:
                tensors = load(path / name)
                self.assertEqual({k for k, v in index["weight_map"].items() if v == name},
                                 set(tensors))
                loaded.update(tensors)
                order += names_in_order(path / name)
            shapes = expected_shapes()
            self.assertEqual({k: shape for k, (shape, _) in loaded.items()}, shapes)
            self.assertEqual(index["metadata"]["total_size"],
                             4 * sum(len(values) for _, values in loaded.values()))
            for position, name in enumerate(order):
                values = loaded[name][1]
                self.assertEqual(values, values_of(0, position, len(values)), name)

    def test_the_moments_have_the_same_tensors(self):
        path = self.saved(60_000)
        shards = len(list(path.glob("master-*")))
        for number, family in enumerate(FAMILIES):
            position = 0
            for shard in range(1, shards + 1):
                name = f"{family}-{shard:05}-of-{shards:05}.safetensors"
                tensors = load(path / name)
                for tensor in names_in_order(path / name):
                    values = tensors[tensor][1]
                    self.assertEqual(values, values_of(number, position, len(values)), tensor)
                    position += 1
            self.assertEqual(position, len(expected_shapes()))

    def test_the_manifest_is_what_the_format_says(self):
        path = self.saved(60_000)
        text = (path / "checkpoint.json").read_text()
        content = json.loads(text)["content"]
        self.assertEqual(content["train"]["global_step"], 5)
        self.assertEqual(content["train"]["samples_drawn"], 40)
        self.assertEqual((content["loss"], content["validation_loss"]), (2.5, None))
        self.assertEqual(json.loads(content["configuration"]),
                         {"train_batch_size": 8, "note": "größe"})
        self.assertEqual(content["parameters"], len(expected_shapes()))
        self.assertEqual({file["name"] for file in content["files"]} | {"checkpoint.json"},
                         {file.name for file in path.iterdir()})
        for file in content["files"]:
            size = (path / file["name"]).stat().st_size
            self.assertEqual(file["bytes"], size)
            self.assertEqual(len(file["xxh3_64"]), 16 * -(-size // content["chunk_bytes"]))

    @unittest.skipIf(xxhash is None, "this Python has no package xxhash")
    def test_the_checksums_are_those_of_the_format(self):
        path = self.saved(60_000)
        document = json.loads((path / "checkpoint.json").read_text())
        content = document["content"]
        plain = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        self.assertEqual(xxhash.xxh3_64_hexdigest(plain.encode()), document["checksum"])
        chunk_bytes = content["chunk_bytes"]
        for number, file in enumerate(content["files"]):
            data = (path / file["name"]).read_bytes()
            hashes = ""
            for offset in range(0, len(data), chunk_bytes):
                seed = xxhash.xxh3_64_intdigest(struct.pack("<4Q", HASH_DOMAIN, number, 0, offset))
                hashes += xxhash.xxh3_64_hexdigest(data[offset:offset + chunk_bytes], seed)
            self.assertEqual(hashes, file["xxh3_64"], file["name"])


if __name__ == "__main__":
    if safetensors is None and TRIED not in os.environ:
        run_where_the_library_is()
    unittest.main()
