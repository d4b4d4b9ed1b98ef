"""1F1B (PipeDream-Flush; Narayanan et al., "Efficient large-scale language model training on GPU
clusters using Megatron-LM", SC 2021): the order of a stage's passes in a step."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple


class Pass(enum.Enum):
    FORWARD = 0
    BACKWARD = 1


class Work(NamedTuple):
    """A pass of a micro-batch. `also`: the micro-batch of the other kind that comes next or came
    before, whose messages to the same neighbour are exchanged together with this one's."""

    kind: Pass
    micro_batch: int


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> Iterator[Work]:
    """At most `stages - stage` micro-batches have had forward and not yet backward."""
    warm_up = min(stages - stage - 1, micro_batches)
    for number in range(warm_up):
        yield Work(Pass.FORWARD, number)
    for number in range(micro_batches):
        if number + warm_up < micro_batches:
            yield Work(Pass.FORWARD, number + warm_up)
        yield Work(Pass.BACKWARD, number)
