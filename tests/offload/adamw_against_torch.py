"""A hundred steps of the real kernels beside torch.optim's AdamW and Adam in float64.

The program is the environment's ADAMW_REPLAY. Both sides start from the same fp32 parameters and
the same gradients: what the kernels read as bf16 or fp16 numbers, torch's own cast makes of the
fp32 ones, and torch then computes with in float64. Norm and clipping are torch's clip_grad_norm_,
or clip_grad_value_.
"""

import itertools
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch

REPLAY = os.path.abspath(os.environ.get("ADAMW_REPLAY", "build/bin/adamw_replay"))
ELEMENTS = 100_000
STEPS = 100
LR = 1e-3
DECAY = 0.1
SCALE = 1024.0  # of the loss; a power of two, as training has it
CLIP = 1.0
LIMIT = 0.002  # of an element: about half exceed it
ISA_MISSING = 3

GRADS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FORMS = ("split", "fp32", "fp32+fp16")
ISAS = ("scalar", "avx2", "avx512")


class Replayed:
    """What adamw_replay wrote."""

    def __init__(self, file, elements, steps, form):
        with open(file, "rb") as stream:
            take = lambda kind, count: np.fromfile(stream, dtype=kind, count=count)
            self.p, self.m, self.v = (take("<f4", elements) for _ in range(3))
            self.param16 = None if form == "fp32" else take("<u2", elements)
            self.norms, self.factors = (take("<f8", steps) for _ in range(2))
            if len(self.factors) != steps or stream.read(1):
                raise AssertionError("adamw_replay's output has another length")


def replay(folder, data, **given):
    """None where this CPU lacks the isa."""
    out = Path(folder) / "out"
    keys = {"lr": LR, "decay": DECAY, "scale": SCALE, "clip": 0, "limit": 0, "mode": "adamw", "in": data,
            "out": out, **given}
    result = subprocess.run([REPLAY, *(f"{key}={value}" for key, value in keys.items())],
                            capture_output=True, text=True, check=False)
    if result.returncode == ISA_MISSING:
        return None
    if result.returncode != 0:
        raise AssertionError(f"code {result.returncode}: {result.stderr.strip()}")
    replayed = Replayed(out, keys["elements"], keys["steps"], keys["form"])
    out.unlink()
    return replayed


class Reference:
    """torch's side, in float64."""

    def __init__(self, start, gradients, grad, mode, clip, limit=0):
        parameter = torch.nn.Parameter(start.double())
        if mode == "adamw":
            optimizer = torch.optim.AdamW([parameter], lr=LR, weight_decay=DECAY)
        else:
            optimizer = torch.optim.Adam([parameter], lr=LR, weight_decay=DECAY)
        self.norms, self.factors, self.limited = [], [], 0
        for scaled in gradients:
            exact = scaled.to(GRADS[grad]).double() / SCALE
            parameter.grad = exact.clone()
            norm = torch.linalg.vector_norm(exact)
            if clip > 0:
                norm = torch.nn.utils.clip_grad_norm_([parameter], clip)
            largest = exact.abs().argmax()
            self.norms.append(norm.item())
            self.factors.append((parameter.grad[largest] / exact[largest]).item())
            if limit > 0:
                torch.nn.utils.clip_grad_value_([parameter], limit)
                self.limited += (exact.abs() > limit).double().mean().item() / STEPS
            optimizer.step()
        state = optimizer.state[parameter]
        self.p = parameter.detach().numpy()
        self.m = state["exp_avg"].numpy()
        self.v = state["exp_avg_sq"].numpy()


def distance(x, reference):
    return np.linalg.norm(x - reference) / np.linalg.norm(reference)


class AdamwAgainstTorch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        seed = 20240
        print(f"seed {seed}, torch {torch.__version__}", flush=True)
        torch.manual_seed(seed)
        torch.set_num_threads(2)
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.data = Path(cls.folder.name) / "in"
        cls.start = torch.randn(ELEMENTS) * 0.05
        # Norms from about a third of the clip norm to three times it.
        lengths = torch.linspace(0.3, 3, STEPS)[torch.randperm(STEPS)] * SCALE / ELEMENTS**0.5
        cls.gradients = torch.randn(STEPS, ELEMENTS) * lengths[:, None]
        with open(cls.data, "wb") as file:
            file.write(cls.start.numpy().tobytes())
            file.write(cls.gradients.numpy().tobytes())

    def replay(self, **given):
        return replay(self.folder.name, self.data, elements=ELEMENTS, steps=STEPS, **given)

    def check_param16(self, ours, form):
        if form == "fp32":
            return
        p = torch.from_numpy(ours.p)
        if form == "fp32+fp16":
            np.testing.assert_array_equal(ours.param16, p.half().view(torch.int16).numpy()
                                          .view(np.uint16))
            return
        torchs = p.bfloat16().view(torch.int16).numpy().view(np.uint16)
        differs = ours.param16 != torchs
        is_tie = (ours.p.view(np.uint32) & 0xFFFF) == 0x8000
        self.assertFalse(np.any(differs & ~is_tie), "differs from torch's cast beside a tie")
        self.assertLess(np.count_nonzero(differs), ELEMENTS // 1000)

    def check(self, ours, reference, form):
        for name in ("p", "m", "v"):
            self.assertLess(distance(getattr(ours, name), getattr(reference, name)), 1e-6, name)
        np.testing.assert_allclose(ours.norms, reference.norms, rtol=1e-12)
        # The kernel multiplies by a float: half a unit in its last place.
        np.testing.assert_allclose(ours.factors, reference.factors, rtol=2.0**-24)
        self.check_param16(ours, form)

    def check_all(self, mode, clip, limit=0):
        for grad in GRADS:
            reference = Reference(self.start, self.gradients, grad, mode, clip, limit)
            clipped = sum(factor < 0.999 for factor in reference.factors)
            self.assertTrue(STEPS // 4 < clipped < STEPS if clip else clipped == 0, clipped)
            for form, isa in itertools.product(FORMS, ISAS):
                with self.subTest(grad=grad, form=form, isa=isa):
                    ours = self.replay(grad=grad, form=form, isa=isa, mode=mode, clip=clip,
                                       limit=limit)
                    if ours is None:
                        print(f"this CPU cannot run {isa}", flush=True)
                        continue
                    self.check(ours, reference, form)

    def test_adamw(self):
        self.check_all("adamw", 0)

    def test_adamw_clipped(self):
        self.check_all("adamw", CLIP)

    def test_adam_with_l2(self):
        self.check_all("l2", 0)

    def test_adam_with_l2_clipped(self):
        self.check_all("l2", CLIP)

    def test_adamw_clipped_by_value(self):
        self.check_all("adamw", 0, LIMIT)
        limited = Reference(self.start, self.gradients, "fp32", "adamw", 0, LIMIT)
        self.assertTrue(0.2 < limited.limited < 0.9, limited.limited)
        free = Reference(self.start, self.gradients, "fp32", "adamw", 0)
        self.assertGreater(distance(free.m, limited.m), 0.1)

    def test_adam_with_l2_clipped_by_value(self):
        self.check_all("l2", 0, LIMIT)

    def test_a_wrong_gradient_is_noticed(self):
        """The bound is worth something: an error of a hundred-thousandth breaks it."""
        reference = Reference(self.start, self.gradients * (1 + 1e-5), "fp32", "adamw", 0)
        ours = self.replay(grad="fp32", form="fp32", isa="auto")
        self.assertGreater(distance(ours.m, reference.m), 1e-6)

    def test_bf16_ties_go_away_from_zero_where_torch_goes_to_even(self):
        """Nothing moves with lr=0, so every parameter stays the tie that it begins as."""
        elements = 1 << 12
        upper = np.arange(elements, dtype=np.uint32) + 0x3D00
        upper[1::4] |= 0x8000  # some negative, odd and even ones
        upper[2::4] |= 0x8000
        start = (upper << 16 | 0x8000).view(np.float32)
        data = Path(self.folder.name) / "ties"
        data.write_bytes(start.tobytes() + np.zeros(elements, np.float32).tobytes())
        torchs = torch.from_numpy(start).bfloat16().view(torch.int16).numpy().view(np.uint16)
        for isa in ISAS:
            with self.subTest(isa=isa):
                ours = replay(self.folder.name, data, elements=elements, steps=1, grad="fp32",
                              form="split", isa=isa, lr=0, decay=0)
                if ours is None:
                    continue
                np.testing.assert_array_equal(ours.p, start)
                np.testing.assert_array_equal(ours.param16, (upper + 1).astype(np.uint16))
                np.testing.assert_array_equal(ours.param16 != torchs, upper % 2 == 0)


if __name__ == "__main__":
    unittest.main()
