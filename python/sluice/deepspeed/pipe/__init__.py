"""``deepspeed.pipe``: a model as a list of layers, which stages on different ranks compute.

    from sluice.deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    module = PipelineModule(layers, num_stages=2, loss_fn=loss)
    engine, _, _, _ = sluice.deepspeed.initialize(model=module, config="ds_config.json")
    loss = engine.train_batch(batches)
"""

from __future__ import annotations

from .layers import LayerSpec, TiedLayerSpec
from .module import PipelineModule
from .topology import PipeDataParallelTopology, ProcessTopology

__all__ = [
    "LayerSpec",
    "PipeDataParallelTopology",
    "PipelineModule",
    "ProcessTopology",
    "TiedLayerSpec",
]
