"""deploy/: what its files start exists, and the exit codes that they name are those of the program.

No container engine is needed. SLUICE is the program; SLUICE_HAS_ENGINE=1 with LibTorch.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tools"))

import tool_packages
import torch_venv
from docs_parts import fences, markdown, program

SLUICE = Path(os.environ["SLUICE"])
HAS_ENGINE = os.environ.get("SLUICE_HAS_ENGINE") == "1"
DEPLOY = ROOT / "deploy"


def exit_codes():
    """(saved, interrupted, mistake) as the sources have them."""
    interrupt = (ROOT / "tools/support/interrupt.h").read_text(encoding="utf-8")
    main = (ROOT / "tools/cli/main.cc").read_text(encoding="utf-8")
    mistake = re.search(r"case ErrorCode::kInvalidArgument:.*?return (\d+);", main, re.DOTALL)
    return tuple(int(re.search(rf"{name} = (\d+);", interrupt)[1])
                 for name in ("kSavedExitCode", "kInterruptedExitCode")) + (int(mistake[1]),)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-deploy-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return path


class Image(InFolder):
    @classmethod
    def setUpClass(cls):
        text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
        lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        cls.steps = [tuple(step.split(None, 1))
                     for step in lines.replace("\\\n", " ").splitlines() if step.strip()]

    def last(self, name):
        return [value for step, value in self.steps if step == name][-1]

    def shells(self):
        return [re.sub(r"^(--mount=\S+\s+)+", "", value)
                for step, value in self.steps if step == "RUN"]

    def test_runs_shell_that_parses(self):
        self.assertEqual(len(self.shells()), 3)
        for text in self.shells():
            result = subprocess.run(["sh", "-n", "-c", text], capture_output=True, text=True,
                                    check=False)
            self.assertEqual((result.returncode, result.stderr), (0, ""), text)

    def test_has_the_torch_of_the_wheel(self):
        minor = ".".join(torch_venv.TORCH_VERSION.split(".")[:2])
        self.assertEqual(self.last("ARG"), f"TORCH={minor}")

    def install(self, *wheels):
        """What the step with the wheel runs as pip, in a context with `wheels`."""
        context = self.folder / "wheels"
        context.mkdir()
        for name in wheels:
            (context / name).touch()
        pip = self.program("pip", '#!/bin/sh\nprintf "%s\\n" "$@"\n')
        text = self.shells()[-1].replace("/wheels", str(context))
        text = text.replace("/opt/sluice/bin/pip", str(pip))
        return subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False,
                              env={**os.environ, "TORCH": self.last("ARG").partition("=")[2]})

    def test_installs_the_newest_wheel_for_its_python_and_torch(self):
        torch = self.last("ARG").partition("=")[2]
        tag = f"+torch{torch}-cp311-cp311-manylinux_2_34_x86_64.whl"
        result = self.install(f"sluice-0.9.0{tag}", f"sluice-0.10.0{tag}",
                              f"sluice-0.11.0{tag.replace('311', '312')}",
                              f"sluice-0.12.0{tag.replace(torch, '3.0')}")
        self.assertEqual(result.returncode, 0, result.stderr)
        installed = result.stdout.splitlines()[-1]
        self.assertEqual(Path(installed).name, f"sluice-0.10.0{tag}[data]")
        # The extra and the version's label are those that the wheel is built with.
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        self.assertRegex(project.split("[project.optional-dependencies]")[1], r"(?m)^data = ")
        label = (ROOT / "python/dynamic_metadata.py").read_text(encoding="utf-8")
        self.assertIn('+torch{torch[0]}.{torch[1]}"', label)

    def test_names_a_wheel_that_is_missing(self):
        result = self.install("sluice-0.9.0+torch2.11-cp312-cp312-manylinux_2_34_x86_64.whl")
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr, r"no wheel for Python 3\.11 and torch .*tools/wheel")

    def test_starts_a_program_of_the_wheel_as_an_ordinary_user(self):
        entry = json.loads(self.last("ENTRYPOINT"))
        self.assertEqual(entry[:2], ["tini", "--"])
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        scripts = project.split("[project.scripts]")[1].split("[")[0]
        self.assertRegex(scripts, rf"(?m)^{entry[2]} = ")
        self.assertRegex(self.shells()[0], r"apt-get install -y [^&]*\btini\b")
        user = self.last("USER")
        self.assertRegex(user, r"^[1-9]\d*:[1-9]\d*$")
        self.assertIn(f"useradd --uid {user.split(':')[0]} ", self.shells()[0])
        self.assertEqual(self.last("STOPSIGNAL"), "SIGTERM")


class Kubernetes(InFolder):
    @classmethod
    def setUpClass(cls):
        try:
            import yaml
        except ImportError:
            if not tool_packages.has(["yaml"]):
                raise unittest.SkipTest("no PyYAML: tools/setup --for=test fetches it") from None
            sys.path.append(str(tool_packages.site_packages(tool_packages.folder())))
            import yaml
        text = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
        cls.config, cls.job = yaml.safe_load_all(text)
        cls.pod = cls.job["spec"]["template"]["spec"]
        (cls.container,) = cls.pod["containers"]

    def action(self, code, conditions=()):
        """What the Job does when its pod ends: the first rule that fits."""
        policy = self.job["spec"]["podFailurePolicy"]
        for rule in policy["rules"]:
            codes = rule.get("onExitCodes")
            if codes:
                self.assertEqual(codes["containerName"], self.container["name"])
                self.assertEqual(codes["operator"], "In")
                if code in codes["values"]:
                    return rule["action"]
            elif {it["type"] for it in rule["onPodConditions"]} & set(conditions):
                return rule["action"]
        return "Count"

    def test_goes_by_the_exit_codes_of_the_program(self):
        saved, interrupted, mistake = exit_codes()
        self.assertEqual(self.action(saved), "Ignore")
        self.assertEqual(self.action(interrupted), "Ignore")
        self.assertEqual(self.action(128 + signal.SIGTERM), "Ignore")
        self.assertEqual(self.action(mistake), "FailJob")
        for failure in (1, 128 + signal.SIGKILL, 128 + signal.SIGSEGV):
            self.assertEqual(self.action(failure), "Count")
            self.assertEqual(self.action(failure, ["DisruptionTarget"]), "Ignore")
        self.assertEqual(self.pod["restartPolicy"], "Never")  # else the API refuses the policy
        self.assertEqual(self.job["spec"]["podReplacementPolicy"], "Failed")
        self.assertGreater(self.pod["terminationGracePeriodSeconds"], 30)

    def test_starts_a_command_that_exists(self):
        checker = fences.Checker(program.Program(SLUICE))
        self.assertEqual(list(checker.command(["sluice", *self.container["args"]], False)), [])
        self.assertIn("--resume", self.container["args"])

    def test_is_the_user_of_the_image(self):
        user = re.search(r"(?m)^USER (\d+):(\d+)$",
                         (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
        context = self.pod["securityContext"]
        self.assertEqual((context["runAsUser"], context["runAsGroup"]),
                         (int(user[1]), int(user[2])))

    def test_mounts_what_it_names(self):
        mounts = {it["name"]: it["mountPath"] for it in self.container["volumeMounts"]}
        self.assertEqual(set(mounts), {it["name"] for it in self.pod["volumes"]})
        (config,) = [it["configMap"] for it in self.pod["volumes"] if "configMap" in it]
        self.assertEqual(config["name"], self.config["metadata"]["name"])
        run = json.loads(self.config["data"]["run.json"])
        paths = [*run["data"]["train"], *run["budget"]["nvme_paths"],
                 *(it for it in self.container["args"] if it.startswith("/"))]
        for path in paths:
            self.assertTrue(any(Path(path).is_relative_to(it) for it in mounts.values()), path)
        file = Path(self.container["args"][1])
        self.assertEqual((str(file.parent), file.name in self.config["data"]),
                         (mounts["config"], True))

    @unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
    def test_has_a_run_file_that_is_accepted(self):
        (self.folder / "run.json").write_text(self.config["data"]["run.json"], encoding="utf-8")
        result = subprocess.run([SLUICE, "config", "run.json"], cwd=self.folder, check=False,
                                capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)


# Records its arguments, and runs the command without a container: /sluice is the mounted folder.
SRUN = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps(["srun", *words]) + "\\n")
if "CODE" in os.environ:
    sys.exit(int(os.environ["CODE"]))
(work,) = [it.split("=")[1].split(":")[0] for it in words if it.startswith("--container-mounts=")]
command = [work + it.removeprefix("/sluice") if it.startswith("/sluice/") else it for it in words]
os.execv(os.environ["SLUICE"], command[command.index("sluice"):])
"""
SCONTROL = '#!/bin/sh\necho "[\\"scontrol\\", \\"$1\\", \\"$2\\"]" >> "$CALLS"\n'


class Slurm(InFolder):
    script = DEPLOY / "slurm.sbatch"

    def setUp(self):
        super().setUp()
        self.program("srun", SRUN.format(python=sys.executable))
        self.program("scontrol", SCONTROL)
        self.work = self.folder / "work"
        self.work.mkdir()
        self.calls = self.folder / "calls"

    def start(self, **variables):
        self.calls.write_text("", encoding="utf-8")
        inherited = {name: value for name, value in os.environ.items()
                     if not name.startswith(("SLURM_", "SLUICE_SECRET")) and
                     name not in ("CODE", "IMAGE", "NVME", "WORK")}
        return subprocess.Popen(
            ["bash", self.script], cwd=self.work, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={**inherited, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                 "CALLS": str(self.calls), "SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "8",
                 "SLURM_SUBMIT_DIR": str(self.work), "SLUICE": str(SLUICE.resolve()), **variables})

    @staticmethod
    def end(process):
        """With what it has started, which has its output too."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def called(self):
        return [json.loads(line) for line in self.calls.read_text(encoding="utf-8").splitlines()]

    def ended(self, **variables):
        process = self.start(**variables)
        output = process.communicate(timeout=60)[0]
        return process.returncode, output

    def test_parses_and_begins_with_its_options(self):
        subprocess.run(["bash", "-n", self.script], check=True)
        lines = self.script.read_text(encoding="utf-8").splitlines()
        options = [at for at, line in enumerate(lines) if line.startswith("#SBATCH ")]
        # Slurm reads none after the first command.
        self.assertTrue(all(line.startswith("#") for line in lines[:options[-1]]))
        for at in options:
            self.assertRegex(lines[at], r"^#SBATCH --[a-z-]+(=[^ #]+)?$")

    def test_starts_a_command_that_exists(self):
        self.ended(CODE="0")
        ((_, *words),) = self.called()
        checker = fences.Checker(program.Program(SLUICE))
        self.assertEqual(list(checker.command(words[words.index("sluice"):], False)), [])
        self.assertIn("--resume", words)

    def test_queues_a_run_again_only_when_a_signal_stopped_it_and_it_was_saved(self):
        saved, interrupted, mistake = exit_codes()
        for code in (0, 1, mistake, interrupted, 137, saved):
            self.assertEqual(self.ended(CODE=str(code)), (code, ""))
            again = [words for words in self.called() if words[0] == "scontrol"]
            self.assertEqual(again, [["scontrol", "requeue", "77"]] if code == saved else [])

    def test_starts_the_container_of_the_image(self):
        self.ended(CODE="0", NVME="/local/a")
        ((_, *words),) = self.called()
        self.assertEqual(words[:4], [
            "--cpus-per-task=8", f"--container-image={self.work}/sluice.sqsh",
            f"--container-mounts={self.work}:/sluice,/local/a:/nvme", "--container-workdir=/sluice"])
        self.ended(CODE="0", IMAGE="/images/sluice.sif")
        ((_, *words),) = self.called()
        self.assertEqual(words[:8], [
            "--cpus-per-task=8", "apptainer", "exec", "--nv", "--bind", f"{self.work}:/sluice",
            "--pwd", "/sluice"])
        self.assertEqual(words[8:10], ["/images/sluice.sif", "sluice"])

    def test_makes_a_secret_once_that_others_cannot_read(self):
        self.ended(CODE="0")
        secret = self.work / ".sluice-secret"
        text = secret.read_text(encoding="utf-8")
        self.assertRegex(text, r"\A[0-9a-f]{64}\Z")
        self.assertEqual(secret.stat().st_mode & 0o077, 0)
        self.ended(CODE="0")
        self.assertEqual(secret.read_text(encoding="utf-8"), text)

    @unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
    def test_continues_after_slurms_warning(self):
        (self.work / "data.bin").write_bytes(bytes(it % 50 if it % 2 == 0 else 0
                                                   for it in range(20000)))
        (self.work / "run.json").write_text(json.dumps({
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "model": {"preset": "custom", "layers": 1, "hidden": 32, "heads": 2, "context": 16,
                      "vocab": 64},
            "data": {"train": ["data.bin"]}, "run": {"steps": 1000000, "device": "cpu"}}),
            encoding="utf-8")
        process = self.start()
        self.addCleanup(self.end, process)
        metrics = self.work / "runs/a/metrics.jsonl"
        deadline = time.monotonic() + 240
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") > 2):
            if process.poll() is not None or time.monotonic() > deadline:
                self.end(process)
                self.fail(process.communicate()[0])
            time.sleep(0.05)
        # The batch script does not get it, as without "B:" in --signal.
        (step,) = subprocess.run(["pgrep", "-P", str(process.pid)], check=True,
                                 capture_output=True, text=True).stdout.split()
        os.kill(int(step), signal.SIGUSR1)
        output = process.communicate(timeout=240)[0]
        self.assertEqual(process.returncode, exit_codes()[0], output)
        self.assertEqual(self.called()[-1], ["scontrol", "requeue", "77"])
        taken = max(json.loads(line)["step"] for line in metrics.read_text().splitlines())
        run = json.loads((self.work / "run.json").read_text(encoding="utf-8"))
        run["run"]["steps"] = taken + 2
        (self.work / "run.json").write_text(json.dumps(run), encoding="utf-8")
        process = self.start()
        self.addCleanup(self.end, process)
        output = process.communicate(timeout=240)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertEqual([words[0] for words in self.called()], ["srun"])
        steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
        self.assertEqual(steps, list(range(1, taken + 3)))


class Page(InFolder):
    @classmethod
    def setUpClass(cls):
        cls.text = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")

    def test_has_the_exit_codes_of_the_program(self):
        rows = re.findall(r"(?m)^\| ([\d, ]+) \| (.*?) \|", self.text)
        meaning = {int(code): text for codes, text in rows for code in codes.split(",")}
        saved, interrupted, mistake = exit_codes()
        self.assertIn("saved", meaning[saved])
        self.assertIn("before the first step", meaning[interrupted])
        self.assertIn("mistake", meaning[mistake])

    def test_names_files_that_exist(self):
        for name in re.findall(r"deploy/[\w.]+", self.text):
            self.assertTrue((ROOT / name).exists(), name)
        self.assertEqual({f"deploy/{it.name}" for it in DEPLOY.iterdir()},
                         set(re.findall(r"deploy/\w[\w.]+", self.text)))

    @unittest.skipUnless(shutil.which("jq"), "no jq")
    def test_allows_three_more_system_calls(self):
        (fence,) = [it for it in markdown.fences_of(self.text) if "jq " in "\n".join(it.lines)]
        profile = {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38,
                   "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}
        (self.folder / "default.json").write_text(json.dumps(profile), encoding="utf-8")
        command = "\n".join(fence.lines).replace("/usr/share/containers/seccomp.json",
                                                 "default.json")
        self.assertIn("default.json", command)
        subprocess.run(["sh", "-c", command], cwd=self.folder, check=True)
        file = shlex.split(command)[-1]
        made = json.loads((self.folder / file).read_text(encoding="utf-8"))
        rule = made["syscalls"].pop()
        self.assertEqual(made, profile)
        self.assertEqual(rule["action"], "SCMP_ACT_ALLOW")
        # What the program calls, and no more.
        source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "aio").glob("*.cc"))
        self.assertIn("io_uring_queue_init_params", source)
        self.assertEqual(sorted(rule["names"]),
                         ["io_uring_enter", "io_uring_register", "io_uring_setup"])
        manifest = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
        self.assertIn(f"localhostProfile: {file}", manifest)


if __name__ == "__main__":
    unittest.main()
