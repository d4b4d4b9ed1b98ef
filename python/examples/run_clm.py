#!/usr/bin/env python3
"""Trains a causal language model on text, in the shape of Hugging Face's run_clm.py.

    python run_clm.py --train_file book.txt --output_dir runs/clm --do_train --do_eval

The only difference from that script is --sluice, which replaces --deepspeed.
"""

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (AutoConfig, AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer,
                          GPT2Config, HfArgumentParser, TrainingArguments,
                          default_data_collator)

from sluice.transformers import Trainer


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(default=None, metadata={
        "help": "weights to go on from (default: a small GPT-2 with random ones)"})
    config_overrides: str = field(default="n_embd=64,n_layer=4,n_head=4", metadata={
        "help": "of the random GPT-2"})


@dataclass
class DataArguments:
    train_file: str = field(metadata={"help": "text"})
    validation_file: str | None = field(default=None, metadata={
        "help": "text (default: the last twentieth of the other)"})
    block_size: int = field(default=128, metadata={"help": "tokens in a sequence"})


@dataclass
class EngineArguments:
    sluice: str = field(default=str(Path(__file__).with_name("ds_zero3.json")), metadata={
        "help": "a DeepSpeed JSON, or a run file"})


class Blocks(Dataset):
    """A text's tokens in blocks of equal length. An incomplete block at the end is dropped."""

    def __init__(self, tokens, block_size):
        count = len(tokens) // block_size
        if count == 0:
            sys.exit(f"the text has {len(tokens)} tokens, and --block_size is {block_size}")
        self.blocks = torch.tensor(tokens[:count * block_size]).reshape(count, block_size)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, number):
        return {"input_ids": self.blocks[number], "labels": self.blocks[number]}


def load(arguments):
    if arguments.model_name_or_path:
        tokenizer = AutoTokenizer.from_pretrained(arguments.model_name_or_path)
        return tokenizer, AutoModelForCausalLM.from_pretrained(arguments.model_name_or_path)
    tokenizer = ByT5Tokenizer(extra_ids=0)  # bytes: nothing to download
    config = GPT2Config(vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=1)
    config.update_from_string(arguments.config_overrides)
    return tokenizer, AutoModelForCausalLM.from_config(AutoConfig.for_model(**config.to_dict()))


def main(argv=None):
    parser = HfArgumentParser((ModelArguments, DataArguments, EngineArguments, TrainingArguments))
    model_args, data_args, engine_args, args = parser.parse_args_into_dataclasses(argv)
    torch.manual_seed(args.seed)
    tokenizer, model = load(model_args)

    def tokens_of(path):
        return tokenizer(Path(path).read_text(encoding="utf-8"), add_special_tokens=False).input_ids

    train, validation = tokens_of(data_args.train_file), None
    if data_args.validation_file:
        validation = tokens_of(data_args.validation_file)
    else:
        cut = len(train) - max(len(train) // 20, data_args.block_size)
        train, validation = train[:cut], train[cut:]
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Blocks(train, data_args.block_size),
        eval_dataset=Blocks(validation, data_args.block_size),
        processing_class=tokenizer,
        data_collator=default_data_collator,
        sluice=engine_args.sluice,
    )
    metrics = {}
    if args.do_train:
        resume = args.resume_from_checkpoint
        result = trainer.train(resume_from_checkpoint={"True": True}.get(resume, resume))
        trainer.save_model()
        trainer.save_state()
        metrics.update(result.metrics)
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
    if args.do_eval:
        evaluated = trainer.evaluate()
        evaluated["perplexity"] = math.exp(evaluated["eval_loss"])
        metrics.update(evaluated)
        trainer.log_metrics("eval", evaluated)
        trainer.save_metrics("eval", evaluated)
    return trainer, metrics


if __name__ == "__main__":
    main()
