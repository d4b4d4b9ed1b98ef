"""Ranks of a pipeline that are killed, or fail, in any of its phases: all ranks end, by name."""

import json
import os
import random
import signal
import sys
import tempfile
import time
import unittest

import sluice
import sluice.deepspeed
from pipeline_models import config, of_rank, pipeline
from rank_processes import Ranks
from sluice.deepspeed.pipe import messages, passes, tied_exchange

SEED = int(os.environ.get("SLUICE_KILL_SEED", "1"))
CASES = int(os.environ.get("SLUICE_KILL_CASES", "10"))
STEPS = 3
# Where a rank may die: before or after one of these.
PHASES = (
    (messages.Link, "swap"),
    (passes.StagePasses, "_forward"),
    (passes.StagePasses, "_backward"),
    (tied_exchange.TiedExchange, "exchange"),
    (tied_exchange.TiedExchange, "refresh"),
    (sluice.Engine, "step"),
    (sluice.Engine, "save_checkpoint"),
)


def end_at(number, how):
    """Ends this process at the event of this number, by a signal or an exception."""
    seen = 0

    def event():
        nonlocal seen
        seen += 1
        if seen == number and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if seen == number:
            raise ZeroDivisionError("of the test")

    def watched(function):
        def call(*args, **kwargs):
            event()
            result = function(*args, **kwargs)
            event()
            return result

        return call

    for owner, name in PHASES:
        setattr(owner, name, watched(getattr(owner, name)))


def main():
    what = json.loads(os.environ["WHAT"])
    rank, data_ranks = sluice.ranks.rank(), what["data"]
    if rank == what["rank"]:
        end_at(what["at"], what["how"])
    data = rank % data_ranks
    engine, _, _, _ = sluice.deepspeed.initialize(
        model=pipeline(what["stages"]), config=config(data_ranks)
    )
    for step in range(STEPS):
        engine.train_batch(iter(of_rank(step, data, data_ranks)))
        engine.save_checkpoint(what["folder"])
    engine.destroy()


class Kills(unittest.TestCase):
    def end(self, how, generator):
        stages, data = generator.choice([(2, 1), (3, 1), (2, 2)])
        with tempfile.TemporaryDirectory() as folder:
            what = {
                "stages": stages,
                "data": data,
                "rank": generator.randrange(stages * data),
                "at": generator.randrange(1, 90),
                "how": how,
                "folder": folder,
            }
            code = "import pipeline_kills_test\npipeline_kills_test.main()"
            began = time.monotonic()
            codes, texts = Ranks(code, stages * data, WHAT=json.dumps(what)).wait()
            took = time.monotonic() - began
        said = "\n".join(texts)
        ended = -signal.SIGKILL if how == "kill" else 1
        self.assertEqual(codes[what["rank"]], ended, f"{what}\n{said}")
        for rank, code in enumerate(codes):
            if rank == what["rank"]:
                continue
            self.assertEqual(code, 1, f"{what}\n{said}")
            self.assertRegex(texts[rank], rf"rank {what['rank']}\b", f"{what}\n{said}")
        return took

    def test_at_random_moments(self):
        generator = random.Random(SEED)
        for number in range(CASES):
            with self.subTest(number=number):
                took = self.end("kill" if number % 2 == 0 else "raise", generator)
                print(f"case {number}: {took:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
