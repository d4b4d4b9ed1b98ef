"""A wheel in a system that has Python and torch, no compiler and nothing of ours.

  wheel_in_userland.py WHEEL --system FOLDER|SUITE [--mirror URL] --torch SITE_PACKAGES
                       [--python python3.11] [--other-torch SITE_PACKAGES]

It needs root. A Debian or Ubuntu is made by debootstrap (SUITE: bookworm, jammy, noble) or taken
from FOLDER. An ordinary user of it gets a virtual environment with the torch of SITE_PACKAGES, which
is for the same Python version and laid under it: nothing is downloaded. The user installs the wheel,
runs `sluice doctor`, makes data and trains a small Qwen3 on the CPU. SIGTERM stops the run with exit
code 75, and it is resumed and exported. `aio_bench` and a module from Python follow.

The commands are tried without torch, too, and with --other-torch, which the wheel is not for. It
prints the seconds that `pip install` and the first step take, and exits with 1 at the first thing
that is not as it should be.
"""

import argparse
import contextlib
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
torch.manual_seed(1)
module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
with sluice.initialize(module, config) as engine:
    losses = []
    for _ in range(20):
        loss = (engine(torch.ones(4, 8)) - 3).square().mean()
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


def lay_under(root, site, torch_site):
    """Adds the packages of `torch_site` to those of the folder `site` of a system."""
    if site.parent.name != torch_site.parent.name:
        sys.exit(f"{torch_site} is not for {site.parent.name}")
    folder = Path(tempfile.mkdtemp(dir=root / "overlay"))
    for name in ("upper", "work"):
        (folder / name).mkdir()
    owner = site.stat()
    os.chown(folder / "upper", owner.st_uid, owner.st_gid)
    mount("-t", "overlay", "overlay", "-o",
          f"lowerdir={site}:{torch_site},upperdir={folder}/upper,workdir={folder}/work", site)


def with_torch(userland, venv, torch_site, python):
    """Makes a virtual environment of the user, with the packages of `torch_site` in it."""
    userland.shell(f"{python} -m venv {venv}")
    (site,) = (userland.root / "home/user" / venv / "lib").glob("python3.*/site-packages")
    lay_under(userland.root, site, torch_site)


def check_refusal(userland, venv, problem):
    """What needs torch says one sentence, which ends with the command that helps."""
    sentence = (rf"this build of sluice is for torch \S+, and {problem}: run "
                r"pip install 'torch==[0-9.]+\*', or [^\n]*")
    said = userland.has(f"{venv}/bin/sluice train run.json --out refused",
                        rf"\Asluice: {sentence}\n\Z", expected=1)
    print(said.strip())
    userland.has(f"! {venv}/bin/python -c 'import sluice' 2>&1 | grep -v '^ '",
                 r"No module named 'torch'" if problem.startswith("no ") else
                 rf"\nImportError: {sentence}\n\Z", expected=None)
    said = " ".join(userland.shell(f"{venv}/bin/sluice doctor --quick", expected=1).split())
    if len(re.findall(sentence, said)) != 1:
        sys.exit(f"sluice doctor does not say {sentence!r} once:\n{said}")
    userland.has(f"{venv}/bin/sluice ls run", "step")  # needs no torch


def check(userland, wheel, torch_site, other_site, python):
    said = userland.shell("for it in cc gcc g++ clang nvcc cmake; do command -v $it; done; true")
    if said:
        sys.exit(f"a compiler is there: {said}")
    with_torch(userland, "venv", torch_site, python)
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
    userland.shell(f"{python} -m venv bare && bare/bin/pip install --no-index --no-deps ./{name}")
    check_refusal(userland, "bare", "no torch is installed here")
    if other_site:
        with_torch(userland, "other", other_site, python)
        userland.shell(f"other/bin/pip install --no-index --no-deps ./{name}")
        check_refusal(userland, "other", r"torch \S+ is installed here")
    print("all as it should be")


def add_system(parser):
    parser.add_argument("--system", required=True)
    parser.add_argument("--mirror")
    parser.add_argument("--torch", type=Path, required=True)


@contextlib.contextmanager
def system(options):
    """The root folder of a system that is thrown away, in memory. /overlay is for lay_under()."""
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
        mount("-t", "tmpfs", "tmpfs", root / "srv")
        (root / "overlay").symlink_to("srv")
        try:
            yield root
        finally:
            subprocess.run(["umount", "--lazy", "--recursive", folder], check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    add_system(parser)
    parser.add_argument("--other-torch", type=Path)
    parser.add_argument("--python", default="python3")
    options = parser.parse_args()
    with system(options) as root:
        home = root / "home/user"
        home.mkdir(parents=True)
        mount("-t", "tmpfs", "tmpfs", home)
        os.chown(home, USER, USER)
        check(Userland(root), options.wheel.resolve(), options.torch.resolve(),
              options.other_torch and options.other_torch.resolve(), options.python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
