#!/usr/bin/env python3
"""Fine-tunes DistilBERT to classify text, and keeps the model with the best accuracy.

    python distilbert_classification.py --train_file reviews.tsv --output_dir runs/reviews \\
        --eval_strategy epoch --save_strategy epoch --load_best_model_at_end

Each line of the file is a label, a tab and a text.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import (AutoTokenizer, ByT5Tokenizer, DataCollatorWithPadding,
                          DistilBertConfig, DistilBertForSequenceClassification,
                          EarlyStoppingCallback, HfArgumentParser, TrainingArguments)

from sluice.transformers import Trainer


@dataclass
class ScriptArguments:
    train_file: str = field(metadata={"help": "lines of a label, a tab and a text"})
    model_name_or_path: str | None = field(default=None, metadata={
        "help": "distilbert/distilbert-base-uncased, say (default: a small random one)"})
    max_length: int = field(default=128, metadata={"help": "tokens of a text"})
    patience: int = field(default=3, metadata={
        "help": "evaluations without a better one after which training ends"})
    sluice: str = field(default=str(Path(__file__).with_name("ds_zero3.json")), metadata={
        "help": "a DeepSpeed JSON, or a run file"})


def load(arguments, labels):
    names = {"id2label": dict(enumerate(labels)),
             "label2id": {label: number for number, label in enumerate(labels)}}
    if arguments.model_name_or_path:
        path = arguments.model_name_or_path
        return (AutoTokenizer.from_pretrained(path),
                DistilBertForSequenceClassification.from_pretrained(path, **names))
    tokenizer = ByT5Tokenizer(extra_ids=0)
    config = DistilBertConfig(
        vocab_size=len(tokenizer), dim=64, n_layers=3, n_heads=4, hidden_dim=128,
        max_position_embeddings=arguments.max_length, **names)
    return tokenizer, DistilBertForSequenceClassification(config)


def accuracy(evaluated):
    predicted = evaluated.predictions.argmax(-1)
    return {"accuracy": float((predicted == evaluated.label_ids).mean())}


def main(argv=None):
    parser = HfArgumentParser((ScriptArguments, TrainingArguments))
    arguments, args = parser.parse_args_into_dataclasses(argv)
    torch.manual_seed(args.seed)
    lines = Path(arguments.train_file).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t", 1) for line in lines if line]
    labels = sorted({label for label, _ in pairs})
    tokenizer, model = load(arguments, labels)
    rows = [{**tokenizer(text, truncation=True, max_length=arguments.max_length),
             "labels": labels.index(label)} for label, text in pairs]
    held = max(len(rows) // 10, 1)
    keeps_best = args.load_best_model_at_end
    if keeps_best and args.metric_for_best_model in (None, "loss"):
        args.metric_for_best_model, args.greater_is_better = "accuracy", True
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=rows[held:],
        eval_dataset=rows[:held],
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=accuracy,
        callbacks=[EarlyStoppingCallback(arguments.patience)] if keeps_best else None,
        sluice=arguments.sluice,
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    return trainer, metrics


if __name__ == "__main__":
    main()
