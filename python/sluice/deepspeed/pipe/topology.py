"""The ranks of a pipeline: which stage each computes, and which part of the data it gets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from ..._core import RefusedError


class ProcessTopology:
    """Numbers the ranks of a grid with named axes. The last axis varies fastest."""

    def __init__(self, axes: Sequence[str], dims: Sequence[int]):
        if len(axes) != len(dims) or len(set(axes)) != len(axes) or any(dim < 1 for dim in dims):
            raise RefusedError(
                f"a topology has a size of at least 1 for each of its axes, and {list(axes)} were"
                f" given {list(dims)}"
            )
        self.axes = list(axes)
        self.dims = list(dims)
        self.ProcessCoord = NamedTuple(  # type: ignore[misc]
            "ProcessCoord", [(axis, int) for axis in self.axes]
        )
        self._coords = [
            self.ProcessCoord(*coord) for coord in itertools.product(*map(range, self.dims))
        ]

    def get_rank(self, **coord: int) -> int:
        if coord.keys() != set(self.axes):
            raise ValueError(f"get_rank() needs all axes: {', '.join(self.axes)}")
        return self._coords.index(self.ProcessCoord(**coord))

    def get_coord(self, rank: int) -> tuple[int, ...]:
        """The rank's number on each axis, by the axis's name."""
        return self._coords[rank]

    def get_axis_names(self) -> list[str]:
        return self.axes

    def get_dim(self, axis: str) -> int:
        """The size of an axis; 0 if there is none of that name."""
        return self.dims[self.axes.index(axis)] if axis in self.axes else 0

    def filter_match(self, **wanted: int) -> list[int]:
        """Ranks with these numbers."""
        return [
            rank
            for rank, coord in enumerate(self._coords)
            if all(getattr(coord, axis) == number for axis, number in wanted.items())
        ]

    def get_axis_list(self, axis: str, idx: int) -> list[int]:
        return self.filter_match(**{axis: idx})

    def get_axis_comm_lists(self, axis: str) -> list[list[int]]:
        """Groups of ranks that differ only on this axis."""
        if axis not in self.axes:
            return []
        others = [it for it in self.axes if it != axis]
        groups = itertools.product(*(range(self.get_dim(it)) for it in others))
        return [self.filter_match(**dict(zip(others, numbers))) for numbers in groups]

    def world_size(self) -> int:
        return len(self._coords)

    def __str__(self) -> str:
        return str({coord: rank for rank, coord in enumerate(self._coords)})


class PipeDataParallelTopology(ProcessTopology):
    """Stages, and the ranks that share each stage's batches: rank = stage * num_dp + data."""

    def __init__(self, num_pp: int, num_dp: int):
        super().__init__(["pipe", "data"], [num_pp, num_dp])


class PipelineParallelGrid:
    """This process's numbers in a topology, by DeepSpeed's names."""

    def __init__(self, topology: ProcessTopology, rank: int):
        self._topology = topology
        self._rank = rank
        self.data_parallel_size = max(topology.get_dim("data"), 1)
        self.pipe_parallel_size = topology.get_dim("pipe")
        self.world_size = topology.world_size()

    @property
    def topology(self) -> ProcessTopology:
        return self._topology

    def get_global_rank(self) -> int:
        return self._rank

    def get_stage_id(self) -> int:
        return self._rank // self.data_parallel_size

    def get_data_parallel_id(self) -> int:
        return self._rank % self.data_parallel_size

    get_pipe_parallel_rank = get_stage_id
    get_data_parallel_rank = get_data_parallel_id

    def get_pipe_parallel_world_size(self) -> int:
        return self.pipe_parallel_size

    def get_data_parallel_world_size(self) -> int:
        return self.data_parallel_size

    def get_model_parallel_rank(self) -> int:
        """0: layers are not divided."""
        return 0

    def get_model_parallel_world_size(self) -> int:
        return 1

    get_slice_parallel_rank = get_tensor_model_parallel_rank = get_model_parallel_rank
    get_slice_parallel_world_size = get_model_parallel_world_size
    get_tensor_model_parallel_world_size = get_model_parallel_world_size

    def stage_to_global(self, stage_id: int) -> int:
        """The rank with this one's part of the data in another stage."""
        return stage_id * self.data_parallel_size + self.get_data_parallel_id()
