"""A GPT as a list of layers for the tests of pipelines, and the same model in plain PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F

from sluice.deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from small_modules import ADAMW, LENGTH, VOCAB, WIDTH, run_config

MICRO_BATCHES, ROWS = 4, 2


class Embedding(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(LENGTH, width)

    @property
    def weight(self):
        return self.words.weight

    def forward(self, tokens):
        return self.words(tokens) + self.places.weight[: tokens.shape[1]]


class Attention(nn.Module):
    """A causal block that also passes a mask of booleans on."""

    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)  # one of keys changes nothing
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs):
        x, mask = inputs
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(1, 2)) / x.shape[-1] ** 0.5
        x = x + self.out(scores.masked_fill(mask, -1e4).softmax(-1) @ v)
        return x + self.dropout(self.down(F.gelu(self.up(x)))), mask


def with_mask(x):
    length = x.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
    return x, mask.expand(x.shape[0], length, length)


def only_hidden(inputs):
    return inputs[0]


def logits(embedding, hidden):
    return F.linear(hidden, embedding.weight)


def loss_fn(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class Counted(nn.Module):
    """Counts its passes in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x):
        self.passes += 1
        return x


def shared_blocks(dropout=0.0):
    """A model whose blocks are one module, and whose embedding is used three times."""
    embedding = ("embedding", Embedding, VOCAB, WIDTH)
    block = ("block", Attention, WIDTH, dropout)

    def again(module, inputs):
        x, mask = inputs
        return x + F.linear(x, module.weight).softmax(-1) @ module.weight, mask

    return [
        TiedLayerSpec(*embedding),
        with_mask,
        TiedLayerSpec(*block, tied_weight_attr="qkv.weight"),
        LayerSpec(Attention, WIDTH),
        TiedLayerSpec(*embedding, forward_fn=again),
        TiedLayerSpec(*block, tied_weight_attr="qkv.weight"),
        LayerSpec(Attention, WIDTH),
        TiedLayerSpec(*block, tied_weight_attr="qkv.weight"),
        only_hidden,
        LayerSpec(nn.LayerNorm, WIDTH),
        TiedLayerSpec(*embedding, forward_fn=logits),
    ]


def gpt(blocks=4, dropout=0.0, tied=True, counted=False):
    ends = [
        TiedLayerSpec("embedding", Embedding, VOCAB, WIDTH, forward_fn=fn, tied_weight_attr="weight")
        if tied
        else LayerSpec(*spec)
        for fn, spec in ((None, (Embedding, VOCAB, WIDTH)), (logits, (nn.Linear, WIDTH, VOCAB)))
    ]
    return [
        ends[0],
        with_mask,
        *(LayerSpec(Attention, WIDTH, dropout) for _ in range(blocks)),
        only_hidden,
        *([LayerSpec(Counted)] if counted else []),
        LayerSpec(nn.LayerNorm, WIDTH),
        ends[1],
    ]


def pipeline(stages=1, layers=None, **options):
    return PipelineModule(
        gpt() if layers is None else layers,
        num_stages=stages,
        loss_fn=options.pop("loss_fn", loss_fn),
        seed_layers=options.pop("seed_layers", True),
        **options,
    )


def micro_batches(step, count=MICRO_BATCHES):
    """All micro-batches of a step: (inputs, labels)."""
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = [
        torch.randint(0, VOCAB, (ROWS, LENGTH + 1), generator=generator) for _ in range(count)
    ]
    return [(it[:, :-1], it[:, 1:]) for it in tokens]


def of_rank(step, data, data_ranks, count=MICRO_BATCHES):
    """The micro-batches of a data rank: consecutive lanes of the step."""
    size = count // data_ranks
    return micro_batches(step, count)[data * size : (data + 1) * size]


def config(data_ranks=1, place="cpu", drive=None, count=MICRO_BATCHES, **more):
    more.setdefault("run", {"lanes": 2})
    more.setdefault("gradient_clipping", 0.5)
    return run_config(count // data_ranks, place, drive, **more)


class Plain(nn.Module):
    """The same model and values as pipeline(), with one embedding for both ends."""

    def __init__(self, layers):
        super().__init__()
        made = {}
        self.functions = []
        for number, layer in enumerate(layers):
            if not isinstance(layer, LayerSpec):
                self.functions.append(layer)
                continue
            key = getattr(layer, "key", number)
            if key not in made:
                torch.manual_seed(1234 + number)
                made[key] = layer.build()
                self.add_module(str(number), made[key])
            function = getattr(layer, "forward_fn", None)
            module = made[key]
            self.functions.append(
                module if function is None else lambda x, m=module, f=function: f(m, x)
            )

    def forward(self, x):
        for function in self.functions:
            x = function(x)
        return x


def train_plainly(steps, layers=None, clipping=0.5):
    """Losses by step, and the model."""
    model = Plain(gpt() if layers is None else layers)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=ADAMW["lr"],
        betas=ADAMW["betas"],
        eps=ADAMW["eps"],
        weight_decay=ADAMW["weight_decay"],
    )
    losses = []
    for step in range(steps):
        total = 0.0
        for inputs, labels in micro_batches(step):
            loss = loss_fn(model(inputs), labels) / MICRO_BATCHES
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), clipping)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, model
