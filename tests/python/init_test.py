"""sluice.init: modules that are made, or read from folders, within less memory than they need."""

import copy
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import numpy
import torch
from torch import nn

import sluice
import sluice.deepspeed as deepspeed
from small_modules import DEVICE, Tower, batches, masters, run_config, tower, train

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
sys.path.append(str(ROOT / "tests" / "e2e"))
import reference_packages
from failing_mount import MIB, FullDisk

reference_packages.use()
try:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    MISSING = None
except ImportError as error:
    MISSING = f"{error}: tools/setup --for=test fetches it"

SMALLEST = 1e-6  # GiB of values in memory: only enough for one function of torch


class Odd(nn.Module):
    """Makes its parameters in the various ways of real modules."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # uses deepcopy
        self.table = nn.Embedding(20, 16, padding_idx=3)
        self.tied = nn.Linear(16, 20, bias=False)
        self.tied.weight = self.table.weight
        self.turned = nn.Parameter(torch.randn(16, 24).t())
        nn.init.orthogonal_(self.turned)
        self.list = nn.ParameterList([torch.full((4,), 0.5), torch.randn(3, 5)])
        self.of_numpy = nn.Parameter(torch.from_numpy(numpy.arange(6.0, dtype=numpy.float32)))
        self.scale = float(self.list[1].detach().std()) + self.of_numpy.tolist()[2]
        self.register_buffer("mean", self.turned.detach().mean(0))
        self.halves = nn.Linear(8, 8)
        self.halves.weight.data = self.halves.weight.data.to(torch.bfloat16)
        self.halves.weight.data.normal_(0, 2)
        self.convolution = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3))
        self.sparse = nn.Parameter(nn.init.sparse_(torch.empty(10, 8), 0.5))
        with torch.no_grad():
            self.turned[2:4].mul_(3)
            self.sparse += self.turned.sum()
            self.list[1].copy_(torch.rand(3, 5))
        self.apply(self._again)
        self.load_state_dict({"list.0": torch.arange(4.0)}, strict=False)
        self.none = nn.Parameter(torch.zeros(300, 7))
        self.number = nn.Parameter(torch.tensor(2.5))

    def _again(self, module):
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1, 0.1)
            module.bias.data.uniform_()


@unittest.skipIf(DEVICE == "cuda", "initialization draws the CPU's random numbers, as documented")
class Making(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.drive = self.folder / "drive"
        self.drive.mkdir()
        self.config = run_config(place="nvme", drive=self.drive)
        self.random = None  # a number from torch's generator after made()

    def made(self, make, **options):
        torch.manual_seed(11)
        with sluice.init(self.config, **{"cache_gib": SMALLEST, **options}) as self.making:
            module = make()
        self.random = torch.rand(4)
        return module

    def test_a_forked_process_leaves_the_drive_to_its_parent(self):
        module = self.made(tower)

        def in_child(end):
            nonlocal module
            child = os.fork()
            if child == 0:
                module = None
                gc.collect()
                end()
            for _ in range(1000):
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    return os.waitstatus_to_exitcode(status)
                time.sleep(0.02)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hangs"

        self.assertEqual(in_child(lambda: os._exit(4)), 4)
        with sluice.initialize(module, self.config) as engine:
            self.assertEqual(len(train(engine, batches(1))), 1)

    def plain(self, make):
        torch.manual_seed(11)
        module = make()
        if self.random is not None:
            self.assertTrue(torch.equal(torch.rand(4), self.random))
        return module

    def same(self, module, expected):
        with sluice.init(self.config, cache_gib=SMALLEST):
            got, wanted = dict(module.named_parameters()), dict(expected.named_parameters())
            self.assertEqual(list(got), list(wanted))
            for name, value in wanted.items():
                self.assertEqual(got[name].dtype, value.dtype, name)
                self.assertEqual(got[name].stride(), value.stride(), name)
                self.assertEqual(got[name].requires_grad, value.requires_grad, name)
                self.assertTrue(torch.equal(got[name], value), name)
        for (name, got), (_, wanted) in zip(module.named_buffers(), expected.named_buffers()):
            self.assertTrue(torch.equal(got, wanted), name)
        twice = {
            kind: sorted(name for name, _ in it.named_parameters(remove_duplicate=False))
            for kind, it in {"got": module, "wanted": expected}.items()
        }
        self.assertEqual(twice["got"], twice["wanted"])

    def test_has_the_values_of_plain_construction(self):
        for make in (Tower, Odd):
            module = self.made(make)
            expected = self.plain(make)
            self.same(module, expected)
            self.assertLess(self.making.stats["most_resident_bytes"], 20000)
            self.assertEqual(self.making.stats["resident_bytes"], 0)
        self.assertEqual(module.scale, expected.scale)
        self.assertIs(module.tied.weight, module.table.weight)

    @unittest.skipIf(MISSING, MISSING)
    def test_models_of_transformers(self):
        shape = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48}
        configs = [
            transformers.LlamaConfig(
                vocab_size=60, num_attention_heads=4, tie_word_embeddings=True, **shape
            ),
            transformers.BertConfig(vocab_size=60, num_attention_heads=4, **shape),
            transformers.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4),
            transformers.T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2),
            transformers.MixtralConfig(
                vocab_size=60, num_attention_heads=4, num_key_value_heads=2,
                num_local_experts=4, **shape,
            ),
        ]  # fmt: skip
        for config in configs:
            with self.subTest(config.model_type):
                kind = transformers.AutoModelForSeq2SeqLM
                if config.model_type != "t5":
                    kind = transformers.AutoModelForCausalLM
                module = self.made(lambda it=kind, of=config: it.from_config(of))
                expected = self.plain(lambda it=kind, of=config: it.from_config(of))
                self.same(module, expected)
                folder = self.folder / config.model_type
                expected.save_pretrained(folder, max_shard_size="40KB")
                for dtype in (torch.float32, torch.bfloat16):

                    def read(it=kind, of=folder, kept=dtype):
                        return it.from_pretrained(of, dtype=kept)

                    module = self.made(read)
                    self.same(module, self.plain(read))
                    largest = max(it.nbytes for it in module.parameters())
                    self.assertLessEqual(self.making.stats["most_resident_bytes"], 2 * largest)

    @unittest.skipIf(MISSING, MISSING)
    def test_weights_that_a_folder_has_not_are_made(self):
        config = transformers.BertConfig(
            vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=48,
        )  # fmt: skip
        transformers.BertModel(config).save_pretrained(self.folder / "base")

        def read():
            kind = transformers.BertForSequenceClassification
            return kind.from_pretrained(self.folder / "base", num_labels=3)

        self.same(self.made(read), self.plain(read))

    def test_trains_as_a_module_that_was_plainly_made(self):
        losses = {}
        for place in ("nvme", "mixed", "cpu"):
            config = run_config(place=place, drive=self.drive)
            for bits in ({}, {"bf16": {"enabled": True}}):
                for made in (False, True):
                    module = self.made(Tower) if made else self.plain(Tower)
                    module.blocks[1].requires_grad_(False)
                    with sluice.initialize(module, {**config, **bits}) as engine:
                        if made:
                            self.assertEqual(self.making.stats["values"], 0)
                        got = masters(engine), train(engine, batches(5)), masters(engine)
                    self.assertEqual(got, losses.setdefault(tuple(bits), got))

    def test_the_engine_may_be_made_within_it(self):
        expected = self.made(Tower) and self.plain(Tower)
        torch.manual_seed(11)
        with sluice.init(self.config):
            with sluice.initialize(Tower(), self.config) as engine:
                got = train(engine, batches(3)), masters(engine)
        with sluice.initialize(expected, self.config) as engine:
            self.assertEqual((train(engine, batches(3)), masters(engine)), got)

    def test_buffers_that_are_views_of_parameters_keep_their_values(self):
        def make():
            module = Tower()
            module.register_buffer("start", module.blocks[1].up.weight.data[:2].t())
            return module

        with sluice.initialize(self.made(make), self.config) as engine:
            start = engine.module.start
            self.assertTrue(torch.equal(start, self.plain(make).start))
            self.assertEqual(len(train(engine, batches(1))), 1)

    def test_a_refused_engine_takes_nothing(self):
        module = self.made(Tower)
        with self.assertRaisesRegex(sluice.Error, "budget.cpu_gib"):
            sluice.initialize(module, {**self.config, "budget": {"cpu_gib": 0.1}})
        self.same(module, self.plain(Tower))

    def test_a_checkpoint_of_frozen_ones_is_that_of_a_plain_module(self):
        def frozen(module):
            module.embedding.requires_grad_(False)
            module.blocks[0].requires_grad_(False)
            return module

        with sluice.initialize(frozen(self.made(Tower)), self.config) as engine:
            train(engine, batches(2))
            engine.save_checkpoint(self.folder / "run")
            expected = train(engine, batches(2, seed=4))
        with sluice.initialize(frozen(self.plain(Tower)), run_config()) as engine:
            engine.load_checkpoint(self.folder / "run")
            self.assertEqual(train(engine, batches(2, seed=4)), expected)

    def test_without_values_is_for_loading(self):
        with sluice.initialize(tower(), self.config) as engine:
            train(engine, batches(2))
            engine.save_checkpoint(self.folder / "run")
            state = engine.state_dict()
            expected = train(engine, batches(2, seed=4)), masters(engine)
        for load in (
            lambda it: it.load_checkpoint(self.folder / "run"),
            lambda it: it.load_weights(state),
        ):
            with sluice.init(self.config, values=False):
                module = Tower()
            self.assertTrue(all(it.is_meta for it in module.parameters()))
            self.assertIs(module.head.weight, module.embedding.weight)
            with self.assertRaisesRegex(sluice.Error, "budget.cpu_gib"):
                sluice.initialize(module, {**self.config, "budget": {"cpu_gib": 0.1}})
            with sluice.initialize(module, self.config) as engine:
                for use in (
                    lambda: train(engine, batches(1)),
                    lambda: engine.save_weights(self.folder / "none.safetensors"),
                    lambda: engine.save_checkpoint(self.folder / "none"),
                    module.state_dict,
                ):
                    with self.assertRaisesRegex(sluice.RefusedError, "has no values yet"):
                        use()
                load(engine)
                for name, value in engine.state_dict().items():
                    self.assertTrue(torch.equal(value, state[name]), name)
                if engine.global_step > 0:
                    self.assertEqual((train(engine, batches(2, seed=4)), masters(engine)), expected)
        with sluice.init(self.config, values=False):
            module = Tower()
        module.blocks[0].requires_grad_(False)  # the checkpoint has values only for trained ones
        with sluice.initialize(module, self.config) as engine:
            with self.assertRaisesRegex(sluice.RefusedError, r"call load_weights\(\) before"):
                engine.load_checkpoint(self.folder / "run")

    def test_values_outside_of_it_are_an_error_and_never_others(self):
        module = self.made(Tower)
        weight = module.blocks[0].up.weight
        for use in (torch.sum, lambda it: it.data[0].tolist(), torch.Tensor.numpy, copy.deepcopy):
            with self.assertRaisesRegex(RuntimeError, r"\[64, 16\] .*on a drive.*init\(\)"):
                use(weight.detach())
        self.assertEqual((weight.shape, weight.dtype), ((64, 16), torch.float32))
        self.assertEqual(sum(it.numel() for it in module.parameters()), 9472)
        with sluice.init(self.config), torch.no_grad():
            weight[0] = 3
        with self.assertRaisesRegex(RuntimeError, "is on a drive"):
            weight.sum()
        expected = self.plain(Tower)
        expected.blocks[0].up.weight.data[0] = 3
        self.same(module, expected)

    def test_memory_whose_address_is_known_stays(self):
        torch.manual_seed(11)
        with sluice.init(self.config, cache_gib=5e-6):
            module = Tower()
            values = module.blocks[0].up.weight.detach().numpy()
            module.apply(lambda it: it)
            for block in module.blocks:
                block.down.weight.data.zero_()
            values[5] = 7
            with self.assertRaisesRegex(sluice.RefusedError, r"address of .*\[16, 64\].*cache_gib"):
                module.blocks[1].down.weight.data_ptr()
            untouched = module.blocks[0].up.bias.sum()
        expected = tower(seed=11)
        self.assertEqual(untouched, expected.blocks[0].up.bias.sum())
        expected.blocks[0].up.weight.data[5] = 7
        for block in expected.blocks:
            block.down.weight.data.zero_()
        with sluice.initialize(module, self.config) as engine:
            got = masters(engine)
        with sluice.initialize(expected, self.config) as engine:
            self.assertEqual(masters(engine), got)

    def test_leaves_nothing_behind_however_it_ends(self):
        class Ends(Exception):
            pass

        before = nn.Parameter.__dict__["__new__"]
        with self.assertRaises(Ends):
            with sluice.init(self.config, cache_gib=SMALLEST) as making:
                module = Tower()
                raise Ends
        self.assertIs(nn.Parameter.__dict__["__new__"], before)
        self.assertNotIn("HF_DEACTIVATE_ASYNC_LOAD", os.environ)
        self.assertEqual(making.stats["values"], 27)
        del module
        self.assertEqual(making.stats["values"], 0)
        self.assertEqual(torch.ones(2).sum(), nn.Linear(2, 2).weight.numel() / 2)
        self.assertEqual(os.listdir(self.drive), [])
        open_files = [os.readlink(f"/proc/self/fd/{it}") for it in os.listdir("/proc/self/fd")
                      if os.path.exists(f"/proc/self/fd/{it}")]  # fmt: skip
        self.assertEqual([it for it in open_files if str(self.drive) in it], [])

    def test_without_a_folder_on_nvme_changes_nothing(self):
        with self.assertLogs("sluice", "INFO") as logs:
            with sluice.init(run_config()) as making:
                module = Tower()
        self.assertIn("names no NVMe folder", logs.output[0])
        self.assertEqual(making.stats, {})
        self.assertGreater(module.head.weight.abs().sum(), 0)
        self.config["zero_optimization"]["offload_param"]["nvme_path"] = str(self.folder / "typo")
        with self.assertRaisesRegex(sluice.Error, "offload_param.nvme_path.*typo"):
            sluice.init(self.config).__enter__()

    def test_what_is_damaged_on_the_drive_is_an_error(self):
        module = self.made(Tower)
        damaged = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                link = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if link.startswith(str(self.drive)):
                with open(f"/proc/self/fd/{name}", "r+b", buffering=0) as file:
                    file.seek(100)
                    file.write(b"\x01\x02\x03")
                    os.fsync(file)
                damaged += 1
        self.assertEqual(damaged, 1)
        with self.assertRaisesRegex(sluice.Error, "data that was written"):
            sluice.initialize(module, self.config)

    @unittest.skipIf(FullDisk.unavailable(), FullDisk.unavailable())
    def test_a_full_drive_is_a_sentence_and_costs_what_did_not_fit_alone(self):
        with FullDisk(8 * MIB) as disk:
            config = run_config(place="nvme", drive=disk.path)
            disk.fill(leave_bytes=100 << 10)
            sentence = rf"putting a parameter of shape .* on the drive: no room for .*{disk.path}"
            with self.assertRaisesRegex(sluice.Error, sentence):
                with sluice.init(config, cache_gib=SMALLEST):
                    module = nn.ModuleList(nn.Linear(64, 64) for _ in range(12))
            with sluice.init(config, cache_gib=SMALLEST):
                module = tower(seed=11)
                with self.assertRaisesRegex(sluice.Error, sentence):
                    nn.Linear(200, 200)
                disk.free()
            with sluice.initialize(module, config) as engine:
                got = masters(engine), train(engine, batches(2))
        with sluice.initialize(tower(seed=11), self.config) as engine:
            self.assertEqual((masters(engine), train(engine, batches(2))), got)

    def test_deepspeeds_names(self):
        torch.manual_seed(11)
        with deepspeed.zero.Init(config_dict_or_path=self.config):
            module = Tower()
        self.assertEqual(self.resident(module), 0)
        with deepspeed.zero.GatheredParameters(module.norm.weight, modifier_rank=0):
            module.norm.weight.data.fill_(0.5)
        with deepspeed.zero.GatheredParameters(module.parameters()):
            self.assertEqual(module.norm.weight.sum(), 8)
        self.assertEqual(self.resident(module), 0)
        expected = tower(seed=11)
        expected.norm.weight.data.fill_(0.5)
        engine, _, _, _ = deepspeed.initialize(model=module, config=self.config)
        reference, _, _, _ = deepspeed.initialize(model=expected, config=self.config)
        self.assertEqual(masters(engine.engine), masters(reference.engine))
        engine.destroy()
        reference.destroy()
        with deepspeed.zero.Init(config_dict_or_path=self.config, enabled=False):
            self.assertGreater(Tower().head.weight.abs().sum(), 0)

    def resident(self, module):
        count = 0
        for parameter in module.parameters():
            try:
                parameter.data_ptr()
                count += 1
            except RuntimeError:
                pass
        return count

    def test_a_kill_leaves_nothing_that_stops_the_next_run(self):
        def run(*arguments):
            code = "import sys; sys.path.insert(0, sys.argv[1]); import init_test; "
            code += "init_test.stopped_making(*sys.argv[2:])"
            return subprocess.Popen(
                [sys.executable, "-c", code, str(Path(__file__).parent), *arguments],
                stdout=subprocess.PIPE,
                text=True,
            )

        process = run(json.dumps(self.config))
        self.assertEqual(process.stdout.readline(), "made\n")
        process.send_signal(signal.SIGKILL)
        process.stdout.close()
        process.wait()
        self.assertEqual(os.listdir(self.drive), [])
        self.test_trains_as_a_module_that_was_plainly_made()


def stopped_making(config):
    with sluice.init(json.loads(config), cache_gib=SMALLEST):
        module = Tower()
        print("made", flush=True)
        signal.pause()
    del module


if __name__ == "__main__":
    unittest.main()
