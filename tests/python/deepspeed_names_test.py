"""Names of DeepSpeed that scripts import or use, other than its engine: supported, or refused with
advice."""

import copy
import importlib
import io
import os
import pickle
import subprocess
import sys
import unittest

import torch

import sluice
import sluice.deepspeed as deepspeed
from small_modules import batches, run_config, tower

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 3,
    "zero_optimization": {"stage": 3},
}


class Names(unittest.TestCase):
    def test_that_scripts_import(self):
        for module, names in {
            "accelerator": "get_accelerator",
            "comm": "get_rank get_world_size barrier init_distributed",
            "ops.adam": "DeepSpeedCPUAdam FusedAdam",
            "runtime.dataloader": "RepeatingLoader",
            "runtime.engine": "DeepSpeedEngine",
            "runtime.utils": "see_memory_usage",
            "runtime.zero": "GatheredParameters Init",
            "pipe": "PipelineModule LayerSpec TiedLayerSpec",
            "runtime.pipe.module": "PipelineModule",
            "runtime.pipe.topology": "PipeDataParallelTopology PipelineParallelGrid ProcessTopology",
            "runtime.pipe.engine": "PipelineEngine",
            "runtime.zero.partition_parameters": "GatheredParameters Init ZeroParamStatus",
            "utils": "RepeatingLoader log_dist logger set_z3_leaf_modules",
            "utils.logging": "log_dist logger",
            "zero": "GatheredParameters Init",
        }.items():
            found = importlib.import_module(f"sluice.deepspeed.{module}")
            for name in names.split():
                self.assertTrue(hasattr(found, name), f"{module}.{name}")
        self.assertIs(deepspeed.ops.adam, importlib.import_module("sluice.deepspeed.ops.adam"))
        self.assertFalse(hasattr(deepspeed.utils, "no_such_name"))

    def test_that_are_not_there_say_what_to_use(self):
        for name, sentence in {
            "runtime.pipe.topology.PipeModelDataParallelTopology": "not divided",
            "moe.layer.MoE": "experts",
            "checkpointing.checkpoint": "gradient_checkpointing_enable",
            "ops.lamb.FusedLamb": "AdamW and Adam",
            "runtime.lr_schedules.WarmupLR": "scheduler",
            "utils.safe_get_full_grad": "get_global_grad_norm",
            "utils.safe_get_full_fp32_param": "save_weights",
            "utils.zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint": "save_weights",
            "runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3": "initialize",
        }.items():
            module, _, wanted = name.rpartition(".")
            for kind in (sluice.RefusedError, ImportError):  # a script may catch it and continue
                with self.assertRaisesRegex(kind, f"no {wanted}: .*{sentence}"):
                    exec(f"from sluice.deepspeed.{module} import {wanted}")

    def test_its_optimizers_are_the_engines(self):
        for kind, options, name in (
            (deepspeed.ops.adam.FusedAdam, {}, "AdamW"),
            (deepspeed.ops.adam.FusedAdam, {"adam_w_mode": False}, "Adam"),
            (deepspeed.ops.adam.DeepSpeedCPUAdam, {"adamw_mode": False}, "Adam"),
            (deepspeed.ops.adam.DeepSpeedCPUAdam, {"fp32_optimizer_states": True}, "AdamW"),
        ):
            module = tower(blocks=1)
            optimizer = kind(module.parameters(), lr=0.02, betas=(0.8, 0.9), **options)
            engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=CONFIG)
            params = engine.config["optimizer"]["params"]
            self.assertEqual(engine.config["optimizer"]["type"], name)
            self.assertEqual((params["lr"], params["betas"]), (0.02, [0.8, 0.9]))
            self.assertEqual(params["weight_decay"], 0)
            engine.destroy()

    def test_the_cpus_adam_has_its_parameters_by_deepspeeds_name(self):
        module = tower(blocks=1)
        made = deepspeed.ops.adam.DeepSpeedCPUAdam(model_params=module.parameters(), lr=0.02)
        self.assertEqual(made.param_groups[0]["lr"], 0.02)

    def test_accelerator(self):
        accelerator = deepspeed.get_accelerator()
        for copied in (copy.copy(accelerator), pickle.loads(pickle.dumps(accelerator))):
            self.assertEqual(copied.device_name(), accelerator.device_name())
        name = "cuda" if torch.cuda.is_available() else "cpu"
        self.assertEqual(accelerator.device_name(), name)
        self.assertEqual(torch.ones(1, device=accelerator.current_device_name()).device.type, name)
        self.assertTrue(accelerator.is_available())
        accelerator.empty_cache()
        accelerator.synchronize()
        accelerator.reset_peak_memory_stats()
        self.assertGreaterEqual(accelerator.max_memory_allocated(), 0)
        self.assertIn(torch.bfloat16, accelerator.supported_dtypes())
        self.assertFalse(hasattr(accelerator, "no_such_name"))

    def test_memory_that_cannot_be_pinned_stays_as_it_is(self):
        class Refused:
            def pin_memory(self):
                raise RuntimeError("CUDA error: out of memory")

        accelerator = copy.copy(deepspeed.get_accelerator())
        accelerator._name = "cuda"
        tensor = Refused()
        with self.assertLogs("sluice", "WARNING") as logged:
            self.assertIs(accelerator.pin_memory(tensor), tensor)
        self.assertIn("stays pageable", logged.output[0])

    def test_a_loader_that_repeats(self):
        loader = deepspeed.utils.RepeatingLoader([1, 2, 3])
        self.assertEqual([next(loader) for _ in range(7)], [1, 2, 3, 1, 2, 3, 1])


SCRIPT = """
import os, sys, torch
import sluice.deepspeed as deepspeed
sys.path.insert(0, sys.argv[1])
from small_modules import batches, tower
deepspeed.init_distributed(dist_backend="nccl")
deepspeed.init_distributed()  # once more is nothing
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(3)
engine, *_ = deepspeed.initialize(model=tower(blocks=1), config={
    "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3},
    "run": {"device": "cpu"}})
loss = engine(batches(1)[0])
engine.backward(loss)
engine.step()
total = torch.tensor([float(rank + 1)])
deepspeed.comm.all_reduce(total, op=deepspeed.comm.ReduceOp.SUM)
torch.distributed.barrier()
print("rank", rank, "of", world, "sum", total.item(), "step", engine.global_steps)
engine.destroy()
torch.distributed.destroy_process_group()  # else its threads may end the process at its exit
"""


class Distributed(unittest.TestCase):
    def start(self, **environment):
        known = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"}
        rest = {key: it for key, it in os.environ.items() if key not in known}
        here = os.path.dirname(os.path.abspath(__file__))
        return subprocess.Popen(
            [sys.executable, "-B", "-c", SCRIPT, here],
            env={**rest, "CUDA_VISIBLE_DEVICES": "", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ended(self, process):
        said, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, said)
        return said

    def test_one_process_has_a_group(self):
        self.assertIn("rank 0 of 1 sum 1.0 step 1", self.ended(self.start()))

    def test_ranks_of_a_launcher_share_one(self):
        import socket

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        processes = [
            self.start(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            )
            for rank in range(2)
        ]
        for rank, process in enumerate(processes):
            self.assertIn(f"rank {rank} of 2 sum 3.0 step 1", self.ended(process))


class Sentences(unittest.TestCase):
    def refused(self, sentence, call, kind=sluice.RefusedError):
        with self.assertRaisesRegex(kind, sentence):
            call()

    def test_a_step_that_ends_early(self):
        engine, *_ = deepspeed.initialize(model=tower(blocks=1), config=CONFIG)
        engine.backward(engine(batches(1)[0]))
        engine.step(is_last=True)
        self.assertEqual((engine.global_steps, engine.was_step_applied()), (1, True))
        engine.backward(engine(batches(1)[0]))
        engine.step()
        self.assertEqual(engine.global_steps, 1)
        engine.destroy()

    def test_a_parameter_that_is_read_between_steps(self):
        module = tower(blocks=1)
        with sluice.initialize(module, run_config()) as engine:
            name, parameter = next(iter(module.named_parameters()))
            self.refused(
                f"is released .*{name}.*engine.gathered.*state_dict",
                lambda: parameter.sum().item(),
                RuntimeError,
            )
            with engine.gathered(parameter):
                parameter.sum().item()

    def test_copies_of_a_module_in_training(self):
        module = tower(blocks=2)
        engine = sluice.initialize(module, run_config())
        part = module.blocks[0]
        for what in (module, part, engine):
            self.refused("engine.state_dict", lambda: copy.deepcopy(what))
            self.refused("engine.state_dict", lambda: torch.save(what, io.BytesIO()))
        values = copy.deepcopy(engine.state_dict())
        torch.save(values, io.BytesIO())
        engine.close()
        module.load_state_dict(values, assign=True)
        again = copy.deepcopy(module)  # after the engine, the module is a plain one
        for name, value in again.state_dict().items():
            self.assertTrue(torch.equal(value, values[name]), name)

    def test_gradients_of_gradients_and_of_another_engine(self):
        one, other = tower(blocks=1), tower(blocks=1)
        with sluice.initialize(one, run_config()) as first:
            tokens = batches(1)[0]
            self.refused(
                "Not supported.*create_graph",
                lambda: torch.autograd.grad(
                    first(tokens), [next(one.parameters())], create_graph=True
                ),
            )
            with sluice.initialize(other, run_config()) as second:
                loss = first(tokens) + second(tokens)
                self.refused("loss of another engine.*detach", lambda: second.backward(loss))
                second.backward(second(tokens) + first(tokens).detach())
                second.step()


if __name__ == "__main__":
    unittest.main()
