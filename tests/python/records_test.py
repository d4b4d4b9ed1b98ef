"""An engine's run folder, its background saves, and its use of the planner."""

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import torch
from torch.nn import functional as F

import sluice
from small_modules import DEVICE, batches, initialize, run_config, tower, train

SLUICE = os.environ.get("SLUICE", "")


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-records-")
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)

    def sluice(self, *arguments):
        done = subprocess.run(
            [SLUICE, *map(str, arguments)], capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def events(self, name):
        lines = (self.path / name / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def initialize(self, name, module=None, **options):
        made = {key: options.pop(key) for key in ("trace",) if key in options}
        return sluice.initialize(
            module or tower(), run_config(**options), run_dir=self.path / name, **made
        )


class Records(Folder):
    def test_are_those_that_the_command_line_reads(self):
        data = batches(6)
        with self.initialize("a", accumulation=2, trace=(2, 3)) as engine:
            losses = train(engine, data)
            engine.save_checkpoint()
        with self.initialize("b", accumulation=2, place="nvme", drive=self.path) as engine:
            train(engine, data)
        steps = sluice.metrics(self.path / "a")
        self.assertEqual([it["loss"] for it in steps], losses)
        self.assertEqual([it["step"] for it in steps], [1, 2, 3])
        tokens = 2 * data[0].numel()
        self.assertEqual([it["tokens_seen"] for it in steps], [tokens, 2 * tokens, 3 * tokens])
        for it in steps:
            parts = it["forward_ms"] + it["backward_ms"] + it["update_ms"]
            self.assertLessEqual(parts, it["step_ms"])
            self.assertGreater(min(it["forward_ms"], it["backward_ms"], it["host_rss_bytes"]), 0)
            self.assertAlmostEqual(it["tokens_per_s"], 1000 * tokens / it["step_ms"], delta=1e-3)
        self.assertGreater(sluice.metrics(self.path / "b")[-1]["nvme_read_bytes"], 0)
        self.assertIn("3 steps", self.sluice("diff", self.path / "a", self.path / "b"))
        self.sluice("report", self.path / "a", "--out", self.path / "a.html")
        page = (self.path / "a.html").read_text()
        self.assertIn("optimizer state in memory", page)
        self.assertIn("step-000000003", self.sluice("ls", self.path / "a"))
        config = json.loads((self.path / "a/config.json").read_text())
        self.assertEqual(config["gradient_accumulation_steps"], 2)
        events = self.events("a")
        self.assertEqual([it["event"] for it in events], ["begin", "checkpoint", "end"])
        self.assertEqual(events[0]["model"]["family"], "module")
        self.assertNotIn("steps", events[0])
        self.assertEqual((events[1]["step"], events[2]["how"]), (3, "completed"))
        trace = json.loads((self.path / "a/trace.json").read_text())
        names = {it["name"] for it in trace["traceEvents"] if it["ph"] == "X"}
        self.assertLessEqual({"forward", "backward", "update"}, names)

    def test_go_on_behind_a_checkpoint(self):
        data = batches(5)
        with self.initialize("a") as engine:
            whole = train(engine, data)
        with self.initialize("b") as engine:
            train(engine, data[:2])
            engine.save_checkpoint()
            train(engine, data[2:4])
        with self.initialize("b") as engine:
            engine.load_checkpoint()
            train(engine, data[2:])
        self.assertEqual([it["loss"] for it in sluice.metrics(self.path / "b")], whole)
        cut = sluice.metrics(self.path / "b/metrics-cut.jsonl")
        self.assertEqual([it["step"] for it in cut], [3, 4])
        self.assertEqual([it["event"] for it in self.events("b")].count("begin"), 2)

    def test_are_not_overwritten_by_accident(self):
        with self.initialize("a") as engine:
            train(engine, batches(2))
            engine.save_checkpoint()
        before = (self.path / "a/metrics.jsonl").read_bytes()
        with (
            self.initialize("a") as engine,
            self.assertRaisesRegex(sluice.Error, "run of 2 steps: load_checkpoint"),
        ):
            engine(batches(1)[0])
        self.assertEqual((self.path / "a/metrics.jsonl").read_bytes(), before)
        with (
            self.initialize("a"),
            self.assertRaisesRegex(sluice.Error, "another run"),
        ):
            self.initialize("a")

    def test_are_not_begun_by_an_engine_that_is_refused(self):
        module = tower()
        with torch.no_grad():
            module.norm.weight[0] = float("nan")
        with self.assertRaisesRegex(sluice.RefusedError, "not finite"):
            self.initialize("a", module)
        self.assertEqual(len(module._forward_hooks) + len(module._forward_pre_hooks), 0)
        with self.initialize("a") as engine:  # the folder is unlocked
            train(engine, batches(1))

    def test_say_how_a_run_ended(self):
        for name, error in (("failed", ZeroDivisionError), ("interrupted", KeyboardInterrupt)):
            with self.assertRaises(error), self.initialize(name) as engine:
                train(engine, batches(1))
                raise error("of the script")
            self.assertEqual(self.events(name)[-1]["how"], name)

    def test_lines_are_logged_as_often_as_is_asked_for(self):
        for key in ({"steps_per_print": 2}, {"run": {"log_every": 2}}):
            with self.assertLogs("sluice", "INFO") as logs, initialize(tower(), **key) as engine:
                train(engine, batches(5))
            said = [it for it in logs.output if "loss" in it or "ignored" in it]
            self.assertEqual(len(said), 2, said)
            self.assertRegex(said[0], r"step 2: loss \d")

    def test_are_not_made_in_a_folder_that_is_no_run(self):
        folder = self.path / "model"
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "llama"}')
        (folder / "model.safetensors").write_bytes(b"weights")
        with self.assertRaisesRegex(sluice.Error, "a run's folder"):
            self.initialize("model")
        self.assertEqual(sorted(os.listdir(folder)), ["config.json", "model.safetensors"])
        with self.initialize("a") as engine:
            train(engine, batches(1))
            engine.save_checkpoint()
        theirs = self.path / "theirs"
        theirs.write_text("mine\n")
        (self.path / "a/events.jsonl").unlink()
        (self.path / "a/events.jsonl").symlink_to(theirs)
        with self.assertRaisesRegex(sluice.Error, "events.jsonl is a link"):
            self.initialize("a")
        self.assertEqual(theirs.read_text(), "mine\n")

    def test_are_not_made_where_nobody_asked(self):
        here = os.getcwd()
        os.chdir(self.path)
        self.addCleanup(os.chdir, here)
        with initialize(tower()) as engine:
            train(engine, batches(2))
            self.assertIsNone(engine.run_dir)
            for work in (engine.save_checkpoint, engine.load_checkpoint):
                with self.assertRaisesRegex(sluice.RefusedError, "no run_dir"):
                    work()
        self.assertEqual(os.listdir(self.path), [])
        with self.assertRaisesRegex(sluice.RefusedError, "also give run_dir"):
            sluice.initialize(tower(), run_config(), trace="1:2")
        # The configuration names the folder.
        with sluice.initialize(tower(), run_config(run={"dir": "named"})) as engine:
            train(engine, batches(1))
        self.assertEqual(len(sluice.metrics("named")), 1)

    def test_wait_for_a_disk_that_is_full(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        with self.initialize("a") as engine:
            train(engine, batches(2))
            size = (self.path / "a/metrics.jsonl").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
            try:
                train(engine, batches(2))
                self.assertEqual(len(sluice.metrics(self.path / "a")), 2)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            train(engine, batches(1))
        self.assertEqual([it["step"] for it in sluice.metrics(self.path / "a")], [1, 2, 3, 4, 5])


class BackgroundSaves(Folder):
    def test_have_the_bytes_of_those_in_the_foreground(self):
        data = batches(4)
        for name, background in (("front", False), ("back", True)):
            with self.initialize(name, run={"keep_last": 0}) as engine:
                for tokens in data:
                    train(engine, [tokens])
                    engine.save_checkpoint(client_state={"at": name}, background=background)
        for step in (1, 2, 3, 4):
            front = sluice.load(self.path / "front", checkpoint=step)
            back = sluice.load(self.path / "back", checkpoint=step)
            for name, value in front.items():
                self.assertTrue(torch.equal(value, back[name]), f"{name}, step {step}")
        with self.initialize("back") as engine:
            folder, client = engine.load_checkpoint()
            self.assertEqual((folder[-4:], client), ("0004", {"at": "back"}))
        kinds = [it["event"] for it in self.events("back")]
        self.assertEqual(kinds.count("checkpoint"), 4)

    def test_are_the_run_files_to_ask_for(self):
        with self.initialize("a", run={"checkpoint_background": True}) as engine:
            self.assertIn("checkpoint, copy of the state", dict(engine.memory["host"]))
            train(engine, batches(1))
            path = engine.save_checkpoint()
            engine.wait()
            self.assertTrue(Path(path, "checkpoint.json").exists())

    def test_that_fail_are_said_at_the_next_call(self):
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(self.initialize("a"))
            train(engine, batches(1))
            engine.save_checkpoint(background=True)
            engine.wait()
            for _ in range(2):
                os.rename(self.path / "a", self.path / "moved")
                train(engine, batches(1))
                engine.save_checkpoint(background=True)
                with self.assertRaisesRegex(sluice.Error, "not saved: .*no longer exists"):
                    engine.wait()
                engine.wait()  # reported once
                os.rename(self.path / "moved", self.path / "a")
            train(engine, batches(1))
            engine.save_checkpoint(background=True)
        names = sorted(os.listdir(self.path / "a/checkpoints"))
        self.assertEqual(names, ["step-000000001", "step-000000004"])
        engine = self.initialize("b")
        train(engine, batches(1))
        os.rename(self.path / "b", self.path / "gone")
        engine.save_checkpoint(self.path / "b", background=True)
        with self.assertRaisesRegex(sluice.Error, "was not saved"):
            engine.close()
        engine.close()  # closed already

    def test_that_are_killed_leave_the_one_before(self):
        script = textwrap.dedent(
            """
            import os, sys
            sys.path[:0] = sys.argv[2:]
            import sluice
            from small_modules import batches, run_config, tower, train
            engine = sluice.initialize(tower(), run_config(), run_dir=sys.argv[1])
            for tokens in batches(50):
                train(engine, [tokens])
                engine.save_checkpoint(background=True)
                if engine.global_step == 5:
                    os.kill(os.getpid(), 9)
            """
        )
        done = subprocess.run(
            [sys.executable, "-c", script, self.path / "a", Path(__file__).parent],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, -9, done.stderr)
        data = batches(50)
        with self.initialize("whole") as engine:
            expected = train(engine, data[:8])
        with self.initialize("a") as engine:
            engine.load_checkpoint()
            self.assertIn(engine.global_step, (4, 5))
            train(engine, data[engine.global_step : 8])
        self.assertEqual([it["loss"] for it in sluice.metrics(self.path / "a")], expected)


class Planner(Folder):
    def config(self, **budget):
        config = run_config(place="nvme", drive=self.path / "nvme")
        zero = config["zero_optimization"]
        for part in ("offload_param", "offload_optimizer"):
            zero[part] = {"device": "auto"}
        config["budget"] = {"nvme_paths": [str(self.path / "nvme")], **budget}
        config["data"] = {"sequence_length": 12}
        return config

    def setUp(self):
        super().setUp()
        (self.path / "nvme").mkdir()
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = str(self.path / "cache")
        self.addCleanup(
            lambda: os.environ.pop("XDG_CACHE_HOME")
            if before is None
            else os.environ.update(XDG_CACHE_HOME=before)
        )

    def test_decides_what_is_left_to_it(self):
        data = batches(4)
        module = tower()
        with initialize(module) as engine:
            expected = train(engine, data)
            self.assertIsNone(engine.predicted_step_s)
        with self.assertLogs("sluice", "INFO") as logs, sluice.initialize(
            tower(), self.config(), run_dir=self.path / "a"
        ) as engine:
            self.assertGreater(engine.predicted_step_s, 0)
            self.assertEqual(dict(engine.memory["nvme"]), {})  # RAM suffices
            self.assertEqual(train(engine, data), expected)
        self.assertIn("autograd", " ".join(logs.output))
        plan = self.events("a")[0]["plan"]
        self.assertEqual(plan["step_s"], engine_step(self.events("a")))

    @unittest.skipIf(DEVICE == "cuda", "for RAM alone")
    def test_puts_on_the_drive_what_ram_has_no_room_for(self):
        class Wide(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = torch.nn.ModuleList(
                    torch.nn.Linear(1024, 1024) for _ in range(24)
                )

            def forward(self, x):
                for block in self.blocks:
                    x = F.gelu(block(x))
                return x.square().mean()

        x = torch.randn(2, 1024, generator=torch.Generator().manual_seed(1))

        def losses(config):
            torch.manual_seed(0)
            with sluice.initialize(Wide(), config) as engine:
                found = []
                for _ in range(2):
                    engine.backward(engine(x))
                    found.append(engine.step().loss)
                return found, {tier: dict(lines) for tier, lines in engine.memory.items()}

        expected, literal = losses(run_config())
        program = literal["host"]["the program and LibTorch"]
        lean = (program + 250 * 2**20) / 2**30
        found, memory = losses(self.config(cpu_gib=lean))
        self.assertEqual(found, expected)
        host, nvme = memory["host"], memory["nvme"]
        # How far the planner goes beyond the least depends on speeds.
        kept = [literal["host"][f"{it} in memory"] for it in ("parameters", "optimizer state")]
        room = lean * 2**30 - host["the program and LibTorch"]
        self.assertGreater(sum(kept), room)  # else the test proves nothing
        self.assertGreater(nvme["optimizer state"], 0)
        on_drive = nvme["optimizer state"] + nvme.get("parameters", 0)
        self.assertGreaterEqual(on_drive, sum(kept) - room)
        state = nvme["optimizer state"] + host.get("optimizer state in memory", 0)
        self.assertGreaterEqual(state, kept[1])
        self.assertLessEqual(sum(host.values()), lean * 2**30)
        with self.assertRaisesRegex(sluice.Error, "cpu_gib"):
            losses(self.config(cpu_gib=program / 2**30 / 2))

    @unittest.skipIf(DEVICE == "cuda", "for RAM alone")
    def test_says_once_where_the_script_itself_keeps_too_much(self):
        with initialize(tower()) as engine:
            program = dict(engine.memory["host"])["the program and LibTorch"]
        config = self.config(cpu_gib=(program + 200 * 2**20) / 2**30)
        data = batches(4)
        with sluice.initialize(tower(), config) as engine:
            with self.assertNoLogs("sluice", "WARNING"):
                train(engine, data[:1])
            kept = torch.ones(3 * 2**26)  # 768 MiB
            with self.assertLogs("sluice", "WARNING") as logs:
                train(engine, data[1:])
            self.assertEqual(kept[-1], 1)
        self.assertEqual(len(logs.output), 1)
        sentence = r"GiB of RAM, and budget.cpu_gib allows \d+\.\d+: the script"
        self.assertRegex(logs.output[0], sentence)


def engine_step(events):
    return next(it["plan"]["step_s"] for it in events if it["event"] == "begin")


class Forks(Folder):
    @unittest.skipIf(DEVICE == "cuda", "a forked process has no CUDA")
    def test_leave_the_engine_to_its_parent(self):
        module = tower()
        with self.initialize("a", module, place="nvme", drive=self.path) as engine:
            train(engine, batches(1))
            before = sorted(os.listdir(self.path))
            child = os.fork()
            if child == 0:
                code = 3
                with contextlib.suppress(BaseException):
                    for work in (
                        lambda: engine(batches(1)[0]),
                        engine.step,
                        lambda: engine.save_checkpoint("b"),
                    ):
                        try:
                            work()
                            code = 1
                            break
                        except sluice.RefusedError as error:
                            code = 0 if "before this process was forked" in str(error) else 2
                            if code:
                                break
                    engine.close()
                    del engine
                os._exit(code)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(sorted(os.listdir(self.path)), before)
            self.assertEqual(len(train(engine, batches(2))), 2)

    def test_that_exit_as_programs_do_remove_nothing(self):
        script = textwrap.dedent(
            """
            import os, sys
            sys.path[:0] = sys.argv[2:]
            import sluice
            from small_modules import batches, run_config, tower, train
            engine = sluice.initialize(
                tower(), run_config(place="nvme", drive=sys.argv[1]), run_dir=sys.argv[1] + "/a")
            train(engine, batches(1))
            child = os.fork()
            if child == 0:
                print("of the child")
                sys.exit(3)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
            print(len(train(engine, batches(2))))
            engine.close()
            """
        )
        done = subprocess.run(
            [sys.executable, "-c", script, self.path, Path(__file__).parent],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        self.assertEqual((done.returncode, done.stdout), (0, "of the child\n2\n"), done.stderr)

    @unittest.skipIf(DEVICE == "cuda", "a forked process has no CUDA")
    def test_of_a_loader_of_data_are_fine(self):
        rows = [row for batch in batches(4) for row in batch]
        loader = torch.utils.data.DataLoader(rows, batch_size=2, num_workers=2)
        with initialize(tower()) as engine:
            losses = train(engine, loader)
        with initialize(tower()) as engine:
            self.assertEqual(losses, train(engine, batches(4)))


if __name__ == "__main__":
    unittest.main()
