"""Where a list of layers is cut into stages."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence


def uniform(layers: int, stages: int) -> list[int]:
    """Stage s has layers [bounds[s], bounds[s + 1]); the first stages have one more if there is a
    rest."""
    return [layers * 0 + min(s, layers % stages) + s * (layers // stages) for s in range(stages + 1)]


def balanced(weights: Sequence[float], stages: int) -> list[int]:
    """The bounds with the least maximum of a stage's sum of weights. Each stage has at least one
    layer, so there are at least as many layers as stages. Among those the first stages are as short
    as the maximum allows, so that equal weights are cut evenly from the end."""
    total = list(itertools.accumulate(weights, initial=0.0))
    layers = len(weights)
    # least[k][i]: the least maximum of the layers from i on, in k stages.
    least = [[0.0] * (layers + 1) for _ in range(stages + 1)]
    least[1] = [total[layers] - total[i] for i in range(layers + 1)]
    for k in range(2, stages + 1):
        for i in range(layers - k, -1, -1):
            least[k][i] = min(
                max(total[end] - total[i], least[k - 1][end])
                for end in range(i + 1, layers - k + 2)
            )
    bounds = [0]
    for left in range(stages, 1, -1):
        begin = bounds[-1]
        # The stage takes what is nearest to an equal share of the rest, within the least maximum.
        most, share = least[stages][0], (total[layers] - total[begin]) / left
        fits = [
            end
            for end in range(begin + 1, layers - left + 2)
            if total[end] - total[begin] <= most and least[left - 1][end] <= most
        ]
        bounds.append(min(fits, key=lambda end: abs(total[end] - total[begin] - share)))
    return [*bounds, layers]


def stage_of(bounds: Sequence[int], layer: int) -> int:
    return bisect.bisect_right(bounds, layer) - 1
