"""The image of deploy/Dockerfile without a container engine: its steps by chroot, its entry point as
process 1 of a PID namespace.

  image_in_userland.py WHEELS --system FOLDER|SUITE [--mirror URL] --torch SITE_PACKAGES

It needs root and a network. A Debian is made by debootstrap (SUITE: bookworm) or taken from FOLDER, and
the Dockerfile's RUN lines are carried out in it, with WHEELS, a folder, at /wheels. Instead of the
line that downloads torch, the torch of SITE_PACKAGES (for Python 3.11) is laid under the image's
packages. A FOLDER in which all lines were carried out is taken as it is.

The image's user, with the volumes /sluice and /nvme, then runs `doctor`, and a training with state
on /nvme that SIGTERM stops in the middle. The checkpoint is verified, and the run resumed. The same
is done a second time with io_uring refused by seccomp, no locked memory, and a user without an
entry in /etc/passwd.
"""

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import wheel_in_userland as userland
from hostile_kernel import refuse_call

DOCKERFILE = Path(__file__).resolve().parents[2] / "deploy/Dockerfile"
IO_URING = (425, 426, 427)
RUN = {**userland.RUN, "budget": {"nvme_paths": ["/nvme"]},
       "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"},
                             "offload_optimizer": {"device": "nvme"}}}


class Image:
    """The Dockerfile's steps, and a root folder."""

    def __init__(self, root):
        self.root = root
        text = re.sub(r"(?m)^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"))
        self.steps = [step.split(None, 1) for step in text.replace("\\\n", " ").splitlines() if step]
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                            "HOME": "/root"}

    def value(self, name):
        return [value for step, value in self.steps if step == name][-1]

    def build(self, torch_site):
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
        # The network's certificates, and where pip is to look, are this system's.
        (self.root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
        userland.mount("--bind", "/etc/ssl/certs", self.root / "etc/ssl/certs")
        own = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        own["TORCH"] = self.value("ARG").partition("=")[2]
        for step, value in self.steps:
            if step != "RUN":
                continue
            line = re.sub(r"^(--mount=\S+\s+)+", "", value)
            if "pip install" in line and '"torch==' in line:
                (site,) = (self.root / "opt/sluice/lib").glob("python3.*/site-packages")
                userland.lay_under(self.root, site, torch_site)
                continue
            self.finish(["chroot", self.root, "env", "-i", *self.words({**self.environment, **own}),
                         "sh", "-c", line])

    @staticmethod
    def words(environment):
        return [f"{name}={value}" for name, value in environment.items()]

    @staticmethod
    def finish(words):
        begin = time.monotonic()
        done = userland.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(f"{words[-1]}\nended with {done.returncode}:\n{done.stdout[-4000:]}")
        print(f"{time.monotonic() - begin:.1f} s: {words[-1][:80]}", flush=True)

    def start(self, words, user, restricted):
        """What a container engine starts with `words` as the command."""
        environment = dict(self.environment)
        for name, value in re.findall(r"(\w+)=(\S+)", self.value("ENV")):
            environment[name] = value.replace("$PATH", environment["PATH"])

        def restrict():
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
            for call in IO_URING:
                refuse_call(call, 1)

        return subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", f"--mount-proc={self.root}/proc",
             "chroot", f"--userspec={user}", self.root, "env", "-i", *self.words(environment),
             "sh", "-c", f'cd {self.value("WORKDIR")} && exec "$@"', "sh",
             *json.loads(self.value("ENTRYPOINT")), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=restrict if restricted else None)


def child_of(process):
    """The first child of a process, as soon as it has one."""
    children = Path(f"/proc/{process}/task/{process}/children")
    while not (found := children.read_text(encoding="ascii").split()):
        time.sleep(0.01)
    return int(found[0])


class Containers:
    """Containers of one user, restricted or not, with volumes of their own."""

    def __init__(self, image, volumes, user, restricted):
        self.image, self.user, self.restricted = image, user, restricted
        for name in ("sluice", "nvme"):
            (volumes / name).mkdir()
            os.chown(volumes / name, *map(int, user.split(":")))
            (image.root / name).mkdir(exist_ok=True)
            userland.mount("--bind", volumes / name, image.root / name)
        self.work = volumes / "sluice"

    def run(self, line, expected=0, stop=None):
        """What a command prints. `stop`: waits until SIGTERM is due for process 1."""
        process = self.image.start(shlex.split(line), self.user, self.restricted)
        try:
            if stop:
                first = child_of(process.pid)
                child_of(first)  # tini handles signals when it has one
                stop()
                os.kill(first, signal.SIGTERM)
            said = process.communicate(timeout=300)[0]
        finally:
            process.kill()
        if process.returncode not in (expected if isinstance(expected, tuple) else (expected,)):
            sys.exit(f"{line}\nended with {process.returncode}, not {expected}:\n{said[-4000:]}")
        return said

    def has(self, line, *texts, **options):
        said = self.run(line, **options)
        for text in texts:
            if not re.search(text, " ".join(said.split())):
                sys.exit(f"{line}\ndoes not say {text!r}:\n{said[-4000:]}")
        return said

    def metrics(self):
        path = self.work / "run/metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_for_steps(self):
        deadline = time.monotonic() + 240
        while len(self.metrics()) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)

    def check(self):
        self.has(shlex.join(json.loads(self.image.value("CMD"))), r"\btrain\b")
        threads = ["POSIX threads are used instead"] if self.restricted else []
        found = ([r"limited locked memory 0", r"limited io_uring .*seccomp"] if self.restricted
                 else [r"good io_uring allowed"])
        print(self.has("doctor --quick /sluice /nvme", r"good sluice-engine starts", *found))
        self.run("prepare --demo-corpus data --tokenizer bytes")
        (self.work / "run.json").write_text(json.dumps(RUN), encoding="ascii")
        for seconds in (0, 0.3, 1):  # while it starts
            shutil.rmtree(self.work / "early", ignore_errors=True)
            self.run("train run.json --quiet --out early --steps 100000", expected=(75, 130, 143),
                     stop=lambda: time.sleep(seconds))
        begin = time.monotonic()
        self.has("train run.json --out run --steps 100000", *threads, expected=75,
                 stop=self.wait_for_steps)
        last = self.metrics()[-1]["step"]
        self.has("ls run --verify", rf"step-0*{last} .*intact")
        self.run(f"train run.json --quiet --out run --resume --steps {last + 5}")
        steps = [line["step"] for line in self.metrics()]
        if steps != list(range(1, last + 6)):
            sys.exit(f"the steps are {steps}")
        owners = {(it.stat().st_uid, it.stat().st_gid) for it in self.work.rglob("*")
                  if it.name != "run.json"}
        if owners != {tuple(map(int, self.user.split(":")))}:
            sys.exit(f"files belong to {owners}")
        print(f"user {self.user}, {'restricted' if self.restricted else 'as it is'}: stopped after "
              f"step {last}, saved, resumed, in {time.monotonic() - begin:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path)
    userland.add_system(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as volumes, userland.system(options) as root:
        image = Image(root)
        if not (root / "opt/sluice/bin/sluice").exists():
            (root / "wheels").mkdir()
            userland.mount("--bind", options.wheels.resolve(), root / "wheels")
            image.build(options.torch.resolve())
        os.chmod(volumes, 0o755)
        for name, user, restricted in (("plain", image.value("USER"), False),
                                       ("restricted", "4321:4321", True)):
            (Path(volumes) / name).mkdir()
            Containers(image, Path(volumes) / name, user, restricted).check()
    print("all as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
