"""sluice doctor on machines that lack something: each is made for one run of the program.

The programs are the environment's SLUICE, and FAKE_DRIVER, a library with the functions of NVIDIA's
driver (tests/tools/doctor/fake_driver.cc).
"""

import ctypes
import errno
import fcntl
import json
import os
import pty
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import unittest
from pathlib import Path

from failing_mount import MIB, FailingMount, FullDisk
from hostile_kernel import IO_URING_ENTER, LIBC, refuse_call, unavailable
from sluice_runs import SLUICE

FAKE_DRIVER = os.environ.get("FAKE_DRIVER", "build/bin/libfake_driver.so")
IO_URING_SETUP = 425
PR_CAPBSET_DROP, CAP_IPC_LOCK = 24, 14
STATES = ("good", "limited", "not_possible")
KEYS = ["engine", "torch", "cuda", "driver", "nccl", "cpu", "instructions", "numa", "memory",
        "memlock", "open_files", "io_uring", "huge_pages", "shared_memory", "system", "path.0"]


class Doctor(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-doctor-", dir=os.getcwd())
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)

    def run_doctor(self, *words, code=0, before=(), program=SLUICE, environment=None, **more):
        done = subprocess.run([*before, program, "doctor", *map(str, words)], cwd=self.path,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=240, check=False, env={**os.environ, **(environment or {})},
                              **more)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def lines(self, *words, code=0, **more):
        """key -> line of the JSON, whose exit code and "possible" agree."""
        done = self.run_doctor("--quick", "--json", *words, code=code, **more)
        self.assertEqual(done.stderr, "")
        shown = json.loads(done.stdout)
        self.assertEqual(shown["possible"], code == 0)
        return {line["key"]: line for line in shown["lines"]}

    def within_memory(self, limit):
        """The words that start a program in a control group with so much memory."""
        for root, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                           ("/sys/fs/cgroup", "memory.max")):
            folder = Path(root) / f"sluice-doctor-{os.getpid()}"
            try:
                folder.mkdir()
                self.addCleanup(folder.rmdir)
                (folder / name).write_text(str(limit))
                return ["sh", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "sh"]
            except OSError:
                continue
        return self.skipTest("no control group can limit memory here: it needs root")


class ThisMachine(Doctor):
    def test_is_reported_in_a_table_and_in_json(self):
        done = self.run_doctor("--json", ".")
        shown = json.loads(done.stdout)
        self.assertEqual(list(shown), ["version", "possible", "lines"])
        self.assertRegex(shown["version"], r"\Asluice \d")
        keys = [line["key"] for line in shown["lines"]]
        self.assertEqual([key for key in keys if key in KEYS], KEYS)
        for line in shown["lines"]:
            with self.subTest(line=line):
                self.assertEqual(list(line), ["key", "subject", "state", "needed", "found", "cost",
                                              "change", "values"])
                self.assertIn(line["state"], STATES)
                self.assertEqual(line["cost"] == "", line["state"] == "good")
                self.assertTrue(line["found"])
        values = {line["key"]: line["values"] for line in shown["lines"]}
        self.assertEqual(values["cpu"]["allowed_cores"], len(os.sched_getaffinity(0)))
        self.assertEqual(values["path.0"]["path"], ".")
        self.assertEqual(list(self.path.iterdir()), [])
        table = self.run_doctor("--quick", ".").stdout
        for line in shown["lines"]:
            state = line["state"].replace("_", " ")
            self.assertRegex(table, rf"(?m)^{state} +{re.escape(line['subject'])}(  |\n)")
        self.assertRegex(table.splitlines()[-1], r"\ATraining is possible .*\(\d")
        self.assertNotIn("\033", table)

    def test_looks_at_the_current_and_the_cache_folder_and_at_tmp(self):
        cache = self.path / "cache/sluice"
        where = {"XDG_CACHE_HOME": str(cache.parent)}
        subjects = [line["subject"] for key, line in self.lines(environment=where).items()
                    if key.startswith("path.")]
        self.assertEqual(subjects, [".", "/tmp", str(self.path)])  # the nearest that exists
        cache.mkdir(parents=True)
        subjects = [line["subject"] for line in self.lines(environment=where).values()]
        self.assertEqual(subjects[-1], str(cache))

    def test_refuses_what_is_no_folder(self):
        (self.path / "file").touch()
        os.mkfifo(self.path / "pipe")
        for words, said in ((["absent"], "no folder absent"),
                            (["file"], "file is not a folder"), (["pipe"], "pipe is not a folder"),
                            ([""], "empty"), (["--fast"], "--fast")):
            with self.subTest(words=words):
                done = self.run_doctor(*words, code=2)
                self.assertIn(said, done.stderr)
                self.assertRegex(done.stderr, r"\Asluice: .*\n\Z")
                self.assertEqual(done.stdout, "")

    def test_has_colours_and_its_width_on_a_terminal_only(self):
        for environment, colours in ({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), \
                ({"TERM": "xterm", "NO_COLOR": "1"}, False):
            with self.subTest(environment=environment):
                ours, theirs = pty.openpty()
                fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 72, 0, 0))
                process = subprocess.Popen([SLUICE, "doctor", "--quick"], stdin=subprocess.DEVNULL,
                                           stdout=theirs, cwd=self.path,
                                           env={**os.environ, "NO_COLOR": "", **environment})
                os.close(theirs)
                text = b""
                while True:
                    try:
                        piece = os.read(ours, 4096)
                    except OSError:  # the program has closed it
                        break
                    text += piece
                os.close(ours)
                self.assertEqual(process.wait(), 0)
                self.assertEqual(b"\033[32mgood\033[0m" in text, colours)
                plain = re.sub(r"\033\[\d+m", "", text.decode()).replace("\r", "")
                for line in plain.splitlines():
                    words = line[30:].split()  # a single word may be wider
                    self.assertTrue(len(line) <= 72 or len(words) == 1, line)


class Limits(Doctor):
    @staticmethod
    def without_the_capability():
        if os.geteuid() == 0 and LIBC.prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "PR_CAPBSET_DROP")
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))

    def test_locked_memory_of_0(self):
        line = self.lines(preexec_fn=self.without_the_capability)["memlock"]
        self.assertEqual(line["state"], "limited")
        self.assertEqual(line["values"], {"limit_bytes": 0, "applies": True})
        self.assertIn("0 (ulimit -l)", line["found"])
        self.assertIn("memlock", line["change"].lower())

    @unittest.skipIf(os.geteuid() != 0, "only root may lock more than the limit")
    def test_locked_memory_of_0_that_does_not_bind(self):
        line = self.lines(before=["sh", "-c", 'ulimit -l 0; exec "$@"', "sh"])["memlock"]
        self.assertEqual(line["state"], "good")
        self.assertEqual(line["values"], {"limit_bytes": 0, "applies": False})

    def test_few_open_files(self):
        line = self.lines(before=["sh", "-c", 'ulimit -n 200; exec "$@"', "sh"])["open_files"]
        self.assertEqual((line["state"], line["values"]), ("limited", {"limit": 200}))

    def test_one_core(self):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            self.skipTest("this machine has one core")
        line = self.lines(preexec_fn=lambda: os.sched_setaffinity(0, cores[:1]))["cpu"]
        self.assertEqual(line["state"], "limited")
        self.assertIn("may use 1", line["found"])

    def test_memory_of_a_control_group(self):
        limit = 900 * MIB
        line = self.lines(before=self.within_memory(limit))["memory"]
        self.assertEqual(line["state"], "limited")
        self.assertEqual(line["values"]["cgroup_limit_bytes"], limit)
        self.assertLess(line["values"]["available_bytes"], limit)
        self.assertIn("limit of 900M", line["found"])


@unittest.skipIf(unavailable(), unavailable())
class IoUring(Doctor):
    def test_refused_by_a_filter(self):
        for call, error in ((IO_URING_SETUP, errno.EPERM), (IO_URING_SETUP, errno.ENOSYS),
                            (IO_URING_ENTER, errno.EPERM)):
            with self.subTest(call=call, error=errno.errorcode[error]):
                line = self.lines(preexec_fn=lambda: refuse_call(call, error))["io_uring"]
                self.assertEqual(line["state"], "limited")
                self.assertRegex(line["found"], rf"\({errno.errorcode[error]}\).*seccomp")
                self.assertIn("seccomp=FILE", line["change"])
                self.assertEqual(line["values"], {
                    "allowed": False, "errno": error if call == IO_URING_SETUP else 0})


class Drives(Doctor):
    @unittest.skipIf(FullDisk.unavailable(), FullDisk.unavailable())
    def test_a_full_one_is_not_possible_and_a_small_one_is_limited(self):
        with FullDisk(128 * MIB) as disk:
            line = self.lines(disk.path)["path.0"]
            self.assertEqual(line["state"], "limited")
            self.assertIn("12 bytes", line["cost"])
            disk.fill()
            line = self.lines(disk.path, code=1)["path.0"]
            self.assertEqual(line["state"], "not_possible")
            self.assertIn("full", line["cost"])
            self.assertEqual(line["values"]["free_bytes"], 0)
            done = self.run_doctor("--quick", ".", disk.path, code=1)
            self.assertIn(f"Mend first: {disk.path}", done.stdout.replace("\n", " "))
            shown = self.run_doctor(disk.path, code=1).stdout  # there is no room to measure
            self.assertNotIn("GB/s", shown)

    def test_memory_is_no_drive(self):
        point = self.path / "memory"
        point.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(point)],
                                 check=False, capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("no tmpfs can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", str(point)], check=False)
        line = json.loads(self.run_doctor("--json", "memory", code=1).stdout)["lines"][-1]
        self.assertEqual(line["values"]["kind"], "memory")
        self.assertIn("full", line["cost"])  # less than 64 MiB are free
        subprocess.run(["mount", "-o", "remount,size=30g", str(point)], check=True)
        line = json.loads(self.run_doctor("--json", "memory").stdout)["lines"][-1]
        self.assertEqual(line["state"], "limited")
        self.assertIn("memory from the run", line["cost"])
        self.assertNotIn("read_bytes_per_s", line["values"])

    @unittest.skipIf(os.geteuid() == 0 and not shutil.which("setpriv"), "no setpriv")
    def test_a_folder_that_cannot_be_written(self):
        folder = self.path / "closed"
        folder.mkdir(mode=0o555)
        before = []
        if os.geteuid() == 0:  # whom no mode stops
            before = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
        line = self.lines("closed", code=1, before=before)["path.0"]
        self.assertEqual(line["state"], "not_possible")
        self.assertIn("EACCES", line["found"])

    @unittest.skipIf(FailingMount.unavailable(), FailingMount.unavailable())
    def test_a_mount_that_does_not_answer_is_named(self):
        with FailingMount(self.path) as mount:
            line = self.lines(mount.path)["path.0"]
            self.assertEqual(line["state"], "limited")
            self.assertEqual(line["values"]["kind"], "network")
            hung = mount.hang("statfs", "*")
            try:
                line = self.lines(mount.path, ".", code=1)
                self.assertEqual(line["path.0"]["state"], "not_possible")
                self.assertIn("does not answer", line["path.0"]["found"])
                self.assertNotEqual(line["path.1"]["state"], "not_possible")
            finally:
                hung.release()


class Engines(Doctor):
    def test_one_that_is_missing(self):
        shutil.copy(SLUICE, self.path / "sluice")
        lines = self.lines(code=1, program=self.path / "sluice")
        self.assertEqual(lines["engine"]["state"], "not_possible")
        self.assertIn("sluice-engine is missing", lines["engine"]["found"])
        self.assertTrue(lines["engine"]["needed"])

    def test_one_whose_torch_was_removed(self):
        folder = self.lines()["torch"]["values"]["folder"]
        hide = ["unshare", "--mount", "sh", "-c",
                f'mount -t tmpfs tmpfs "{folder}/lib" && exec "$@"', "sh"]
        if subprocess.run([*hide, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no name space of mounts can be made here: it needs root")
        lines = self.lines(code=1, before=hide)
        self.assertIn("loading shared libraries", lines["engine"]["found"])
        self.assertIn("libtorch_cpu.so", lines["engine"]["change"])
        self.assertIn("not found", lines["torch"]["found"])
        self.assertIn("pip install torch==", lines["torch"]["change"])

    def test_one_whose_torch_is_another(self):
        folder = Path(self.lines()["torch"]["values"]["folder"])
        other = self.path / "version.py"
        other.write_text("__version__ = '2.9.1+cu128'\n")
        if not (folder / "version.py").exists():
            self.skipTest("LibTorch is not PyPI's wheel")
        hide = ["unshare", "--mount", "sh", "-c",
                f'mount --bind "{other}" "{folder}/version.py" && exec "$@"', "sh"]
        if subprocess.run([*hide, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no name space of mounts can be made here: it needs root")
        line = self.lines(before=hide)["torch"]
        self.assertEqual(line["state"], "limited")
        self.assertIn("2.9.1+cu128", line["found"])
        self.assertIn("pip install torch==", line["change"])


class Drivers(Doctor):
    def with_driver(self, settings, code=0, **more):
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            link = self.path / "driver" / name
            link.parent.mkdir(exist_ok=True)
            if not link.exists():
                link.symlink_to(os.path.abspath(FAKE_DRIVER))
        path = f"{self.path / 'driver'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        return self.lines(code=code, environment={"LD_LIBRARY_PATH": path,
                                                  "FAKE_DRIVER": settings, **more})

    def setUp(self):
        super().setUp()
        self.has_cuda = self.lines()["cuda"]["state"] == "good"
        if not self.has_cuda:
            self.skipTest("built without CUDA code")

    def test_of_a_good_gpu(self):
        lines = self.with_driver("")
        self.assertEqual(lines["driver"]["values"], {"version": "580.95.05", "cuda": "13.0"})
        self.assertEqual(lines["gpu.0"]["state"], "good")
        self.assertEqual(lines["gpu.0"]["values"], {
            "name": "Fake H100", "compute_capability": "9.0", "total_bytes": 80 << 30,
            "bf16": True, "fp8": True, "free_bytes": 79 << 30})

    def test_that_is_too_old(self):
        lines = self.with_driver("cuda=12040,driver=550", code=1)
        self.assertEqual(lines["driver"]["state"], "not_possible")
        self.assertIn("driver 580", lines["driver"]["cost"])
        self.assertIn("550.95.05", lines["driver"]["found"])

    def test_of_gpus_that_are_too_old(self):
        lines = self.with_driver("gpus=2,capability=61,peers=0", code=1)
        self.assertIn("too old", lines["gpu.1"]["cost"])
        lines = self.with_driver("gpus=2,capability=75,peers=0")
        self.assertIn("bf16 is not possible", lines["gpu.1"]["cost"])
        self.assertIn("GPU 0 and GPU 1", lines["p2p"]["found"])

    def test_that_fails(self):
        self.assertIn("fabric manager", self.with_driver("init=802", code=1)["driver"]["change"])
        line = self.with_driver("init=100", CUDA_VISIBLE_DEVICES="")["driver"]
        self.assertIn("CUDA_VISIBLE_DEVICES", line["change"])


def gpus_of_this_machine():
    """The rows of nvidia-smi: name, compute capability, MiB and the driver's version."""
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version",
             "--format=csv,noheader,nounits"]
    try:
        shown = subprocess.run(query, capture_output=True, text=True, check=True,
                               timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in row.split(",")] for row in shown.splitlines()]


class MachineWithGpus(Doctor):
    """A fault changes what is said of it, and nothing else."""

    def setUp(self):
        super().setUp()
        self.gpus = gpus_of_this_machine()
        if not self.gpus:
            self.skipTest("nvidia-smi lists no GPU")
        self.plain = self.lines()
        self.numbers = [key for key in self.plain if key.startswith("gpu.")]

    def line_of(self, *keys, **how):
        """The first of the lines that the fault may change; all others judge as before."""
        lines = self.lines(**how)
        for key in (lines.keys() | self.plain.keys()) - set(keys):
            judged = [[each.get(key, {}).get(part) for part in ("state", "cost", "change")]
                      for each in (lines, self.plain)]
            self.assertEqual(*judged, key)
        return lines[keys[0]]

    def test_is_as_nvidia_smi_says(self):
        for key in ("engine", "torch", "cuda", "driver", "nccl", *self.numbers):
            self.assertEqual(self.plain[key]["state"], "good", self.plain[key])
        self.assertEqual(self.plain["driver"]["values"]["version"], self.gpus[0][3])
        shown = [self.plain[key]["values"] for key in self.numbers]
        self.assertEqual(sorted([it["name"], it["compute_capability"]] for it in shown),
                         sorted(row[:2] for row in self.gpus))
        for row, it in zip(sorted(self.gpus, key=lambda row: float(row[2])),
                           sorted(shown, key=lambda it: it["total_bytes"])):
            self.assertAlmostEqual(it["total_bytes"] / (float(row[2]) * MIB), 1, delta=0.05)
            self.assertLessEqual(it["free_bytes"], it["total_bytes"] * 1.05)
        self.assertIn("Training is possible", self.run_doctor("--quick").stdout)

    def test_with_locked_memory_of_0(self):
        # A ring of io_uring takes locked memory, too.
        line = self.line_of("memlock", "io_uring", preexec_fn=Limits.without_the_capability)
        self.assertEqual(line["state"], "limited")
        self.assertEqual(line["values"], {"limit_bytes": 0, "applies": True})

    def test_with_little_memory(self):
        line = self.line_of("memory", before=self.within_memory(2048 * MIB))
        self.assertEqual(line["state"], "limited")
        self.assertIn("limit of 2G", line["found"])

    @unittest.skipIf(unavailable(), unavailable())
    def test_with_io_uring_refused(self):
        line = self.line_of("io_uring",
                            preexec_fn=lambda: refuse_call(IO_URING_SETUP, errno.EPERM))
        self.assertEqual(line["state"], "limited")
        self.assertIn("(EPERM), since a seccomp profile forbids it", line["found"])

    def test_with_hidden_gpus(self):
        for hidden in ("", "-1", "99"):
            with self.subTest(CUDA_VISIBLE_DEVICES=hidden):
                lines = self.lines(environment={"CUDA_VISIBLE_DEVICES": hidden})
                self.assertNotIn("gpu.0", list(lines))
                self.assertNotEqual(lines["driver"]["state"], "good")
                self.assertIn(f"CUDA_VISIBLE_DEVICES={hidden} hides the GPUs: unset it",
                              lines["driver"]["change"])
                self.assertEqual([key for key in KEYS if key not in lines], [])
        lines = self.lines(environment={"CUDA_VISIBLE_DEVICES": "0"})
        self.assertEqual([key for key in lines if key.startswith("gpu.")], ["gpu.0"])
        self.assertEqual(lines["driver"]["state"], "good")

    def test_without_its_devices(self):
        devices = [path for path in Path("/dev").glob("nvidia*") if path.is_char_device()]
        mounts = "".join(f"mount --bind /dev/null {path} && " for path in devices)
        hide = ["unshare", "--mount", "sh", "-c", mounts + 'exec "$@"', "sh"]
        if subprocess.run([*hide, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no name space of mounts can be made here: it needs root")
        on_bus = any(path.joinpath("vendor").read_text() == "0x10de\n"
                     and path.joinpath("class").read_text().startswith("0x03")
                     for path in Path("/sys/bus/pci/devices").glob("*"))
        if not on_bus:
            self.skipTest("the bus does not show the GPUs, so the machine seems to have none")
        lines = self.lines(code=1, before=hide)
        self.assertEqual((lines["driver"]["state"], lines["driver"]["needed"]),
                         ("not_possible", True))
        self.assertNotIn("gpu.0", list(lines))
        text = self.run_doctor("--quick", code=1, before=hide).stdout
        self.assertIn("Mend first: NVIDIA driver", " ".join(text.split()))  # lines are wrapped


class Train(Doctor):
    def test_points_to_the_doctor_when_the_machine_refuses(self):
        (self.path / "text.bin").write_bytes(struct.pack("<400H", *[i % 60 for i in range(400)]))
        (self.path / "nvme").mkdir()
        (self.path / "run.json").write_text(json.dumps({
            "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"},
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}},
            "model": {"layers": 1, "hidden": 32, "heads": 2, "context": 16, "vocab": 64},
            "data": {"train": ["text.bin"], "dtype": "uint16"},
            "run": {"steps": 1, "cpu_threads": 1}, "budget": {"nvme_paths": ["nvme"]}}))

        def said(*sets, code, **more):
            words = [word for one in sets for word in ("--set", one)]
            done = subprocess.run([SLUICE, "train", "run.json", "--out", "run", *words],
                                  cwd=self.path, capture_output=True, text=True, check=False,
                                  **more)
            self.assertEqual(done.returncode, code, done.stderr)
            shutil.rmtree(self.path / "run", ignore_errors=True)
            return done.stderr

        if "gpu.0" not in self.lines():
            self.assertIn("sluice doctor", said("run.device=cuda", code=2))
        if not unavailable():
            self.assertIn("sluice doctor", said(
                "run.device=cpu", "aio.backend=uring", code=2,
                preexec_fn=lambda: refuse_call(IO_URING_SETUP, errno.EPERM)))
        self.assertRegex(said("run.device=cpu", code=0, preexec_fn=Limits.without_the_capability),
                         r"ulimit -l .*sluice doctor")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
