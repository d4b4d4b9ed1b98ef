"""A wheel in a system that has Python and torch, no compiler and nothing of ours.

  wheel_in_userland.py WHEEL --system FOLDER|SUITE [--mirror URL] --torch SITE_PACKAGES

As root. A Debian or Ubuntu is made by debootstrap (SUITE: bookworm, jammy, noble) or taken from
FOLDER. An ordinary user of it gets a virtual environment that holds the torch of SITE_PACKAGES (of
the same Python version, laid under it, so nothing is downloaded), installs the wheel, and then:
`sluice doctor`, data, a first training of a small Qwen3 on the CPU, a stop by SIGTERM with exit code
75, a resume, an export, `aio_bench`, a module from Python; and what is said without torch. Prints
the seconds from the start of `pip install` to the first step. Exits with 1 at the first thing that
is not as it should be.
"""

import argparse
import ctypes
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
    "model": {"family": "llama", "architecture": "qwen3", "preset": "custom", "layers": 4,
              "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn_multiplier": 3,
              "context": 64, "vocab": 257},
    "data": {"train": ["data/train.bin"]},
}
MODULE = """
import torch, sluice
module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
with sluice.initialize(module, config) as engine:
    losses = []
    for _ in range(20):
        loss = engine(torch.ones(4, 8)).square().mean()
        engine.backward(loss)
        losses.append(engine.step().loss)
assert losses[-1] < losses[0], losses
print("trained by", sluice.__version__)
"""
USER = 1000


def run(words, **options):
    return subprocess.run([str(word) for word in words], text=True, check=False, **options)


class Userland:
    def __init__(self, root):
        self.root = root

    def shell(self, line, user=USER, expected=0, seconds=600):
        """What a line prints, as the user in the folder home."""
        words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        env = ["env", "-i", "HOME=/home/user", "LANG=C.UTF-8",
               "PATH=/home/user/venv/bin:/usr/bin:/bin"]
        done = run(["chroot", self.root, *words, *env, "sh", "-c", f"cd /home/user || exit 1; {line}"],
                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
        if expected is not None and done.returncode != expected:
            sys.exit(f"{line}\nended with {done.returncode}, not {expected}:\n{done.stdout[-4000:]}")
        return done.stdout

    def has(self, line, text, **options):
        said = self.shell(line, **options)
        if not re.search(text, said):
            sys.exit(f"{line}\ndoes not say {text!r}:\n{said[-4000:]}")
        return said


def make_system(where, suite, mirror):
    words = ["debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates"]
    if suite != "bookworm":
        words += ["--components=main,universe", "--no-check-gpg"]
    if run([*words, suite, where, *([mirror] if mirror else [])]).returncode != 0:
        sys.exit(f"debootstrap could not make {suite}")


def mount(*words):
    if run(["mount", *words]).returncode != 0:
        sys.exit(f"mount {' '.join(map(str, words))} failed: this needs root")


def train(userland, more, **options):
    return userland.shell(f"sluice train run.json --quiet --out run {more}", **options)


def check(userland, wheel, torch_site):
    said = userland.shell("for it in cc gcc g++ clang nvcc cmake; do command -v $it; done; true")
    if said:
        sys.exit(f"a compiler is there: {said}")
    userland.shell("python3 -m venv venv")
    (site,) = (userland.root / "home/user/venv/lib").glob("python3.*/site-packages")
    if site.parent.name != torch_site.parent.name:
        sys.exit(f"{torch_site} is not for {site.parent.name}")
    upper, work = (userland.root / "overlay" / name for name in ("upper", "work"))
    for folder in (upper, work):
        folder.mkdir(parents=True)
    os.chown(upper, USER, USER)
    mount("-t", "overlay", "overlay", "-o",
          f"lowerdir={site}:{torch_site},upperdir={upper},workdir={work}", site)
    shutil.copy(wheel, userland.root / "home/user")
    name = wheel.name
    begin = time.monotonic()
    userland.shell(f"pip install --no-index --no-deps ./{name}")
    installed = time.monotonic() - begin
    userland.has("sluice --version", r"^sluice \d+\.\d+\.\d+ \(commit .*\nLibTorch: ")
    print(userland.shell("sluice doctor --quick", expected=None))
    begin = time.monotonic()
    userland.shell("sluice prepare --demo-corpus data --tokenizer bytes")
    prepared = time.monotonic() - begin
    (userland.root / "home/user/run.json").write_text(json.dumps(RUN), encoding="ascii")
    begin = time.monotonic()
    train(userland, "--steps 1")
    first_step = time.monotonic() - begin
    print(f"pip install {installed:.1f} s, data {prepared:.1f} s, first step {first_step:.1f} s")
    userland.shell("rm -r run")
    train(userland, "--steps 100000 & "
                    "pid=$!; while [ ! -s run/metrics.jsonl ]; do sleep 0.2; done; "
                    "kill -TERM $pid; wait $pid", expected=75)
    steps = userland.shell("sluice ls run")
    train(userland, "--resume --steps "
                    "$(($(tail -n 1 run/metrics.jsonl | sed 's/.*\"step\": *\\([0-9]*\\).*/\\1/') + 5))")
    print(steps)
    userland.shell("sluice export run exported && test -s exported/model.safetensors")
    userland.shell("aio_bench --help")
    userland.has(f"python3 -c {shlex.quote(MODULE)}", "trained by")
    userland.has("sluice report run --out report.html && ls", "report.html")
    # Without torch.
    userland.shell("python3 -m venv bare && mv venv/bin/sluice sluice-script && "
                   f"bare/bin/pip install --no-index --no-deps ./{name}")
    said = userland.has("bare/bin/sluice plan run/config.json", "no torch is installed here: run",
                        expected=1)
    print(said)
    userland.has("bare/bin/sluice ls run", "step", expected=None)
    userland.shell("bare/bin/python -c 'import sluice'", expected=1)
    print("all as it should be")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--system", required=True)
    parser.add_argument("--mirror")
    parser.add_argument("--torch", type=Path, required=True)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("this needs root: it makes a system, and mounts")
    # Mounts end with this process.
    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:
        sys.exit("no mount namespace of its own")
    mount("--make-rprivate", "/")
    with tempfile.TemporaryDirectory(
            prefix="sluice-userland-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        mount("-t", "tmpfs", "tmpfs", folder)
        lower = Path(options.system)
        if not lower.is_dir():
            lower = folder / "system"
            make_system(lower, options.system, options.mirror)
        root = folder / "root"
        for name in ("root", "upper", "work"):
            (folder / name).mkdir()
        mount("-t", "overlay", "overlay", "-o",
              f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work", root)
        for name in ("proc", "dev", "sys"):
            mount("--rbind", f"/{name}", root / name)
        home = root / "home/user"
        home.mkdir(parents=True)
        mount("-t", "tmpfs", "tmpfs", home)
        os.chown(home, USER, USER)
        mount("-t", "tmpfs", "tmpfs", root / "srv")
        (root / "overlay").symlink_to("srv")
        try:
            check(Userland(root), options.wheel.resolve(), options.torch.resolve())
        finally:
            subprocess.run(["umount", "--lazy", "--recursive", folder], check=False)
    return 0


sys.exit(main())
