#!/usr/bin/env python3
"""Fine-tunes BlenderBot on dialogues: it learns to answer with the next turn.

    python blenderbot_dialogues.py --train_file dialogues.jsonl --output_dir runs/bot

Each line of the file is a dialogue: {"turns": ["Hello!", "Hello, how are you?", ...]}.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import (AutoTokenizer, BlenderbotConfig, BlenderbotForConditionalGeneration,
                          ByT5Tokenizer, DataCollatorForSeq2Seq, HfArgumentParser,
                          Seq2SeqTrainingArguments)

from sluice.transformers import Seq2SeqTrainer

CONTEXT_TURNS = 3


@dataclass
class ScriptArguments:
    train_file: str = field(metadata={"help": "JSON lines, a dialogue each"})
    model_name_or_path: str | None = field(default=None, metadata={
        "help": "facebook/blenderbot-400M-distill, say (default: a small random one)"})
    max_length: int = field(default=128, metadata={"help": "tokens of a context, and of a reply"})
    sluice: str = field(default=str(Path(__file__).with_name("ds_zero3.json")), metadata={
        "help": "a DeepSpeed JSON, or a run file"})


def load(arguments):
    if arguments.model_name_or_path:
        return (AutoTokenizer.from_pretrained(arguments.model_name_or_path),
                BlenderbotForConditionalGeneration.from_pretrained(arguments.model_name_or_path))
    tokenizer = ByT5Tokenizer(extra_ids=0)
    config = BlenderbotConfig(
        vocab_size=len(tokenizer), d_model=64, encoder_layers=2, decoder_layers=3,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
        decoder_ffn_dim=128, max_position_embeddings=arguments.max_length, pad_token_id=0,
        bos_token_id=1, eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None)
    return tokenizer, BlenderbotForConditionalGeneration(config)


def examples(path, tokenizer, max_length):
    """For each turn but the first: the turns before it, and the turn itself."""
    rows = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        turns = json.loads(line)["turns"]
        for at in range(1, len(turns)):
            context = "\n".join(turns[max(0, at - CONTEXT_TURNS):at])
            row = tokenizer(context, truncation=True, max_length=max_length)
            row["labels"] = tokenizer(turns[at], truncation=True, max_length=max_length).input_ids
            rows.append(dict(row))
    return rows


def main(argv=None):
    parser = HfArgumentParser((ScriptArguments, Seq2SeqTrainingArguments))
    arguments, args = parser.parse_args_into_dataclasses(argv)
    torch.manual_seed(args.seed)
    tokenizer, model = load(arguments)
    rows = examples(arguments.train_file, tokenizer, arguments.max_length)
    held = max(len(rows) // 10, 1)
    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=rows[held:],
        eval_dataset=rows[:held],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        sluice=arguments.sluice,
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    # Between steps the module works as usual, and so does generate().
    asked = tokenizer.pad([{key: row[key] for key in ("input_ids", "attention_mask")}
                           for row in rows[:held]], return_tensors="pt").to(trainer.engine.device)
    replies = model.eval().generate(**asked, max_new_tokens=20, do_sample=False)
    for prompt, reply in zip(asked["input_ids"], replies):
        print(tokenizer.decode(prompt, skip_special_tokens=True), "->",
              repr(tokenizer.decode(reply, skip_special_tokens=True)))
    return trainer, trainer.evaluate()


if __name__ == "__main__":
    main()
