"""Conversations as people have them: what is trained on, or the reason why not (chat_cases.py)."""

import datetime
import json
import unittest

from chat_cases import (CHATML, Cases, DISTILLED, MARKED, NEEDS_MESSAGES, TALK, TOKENS, assistant,
                        missing, user)


def setUpModule():
    if MISSING:
        raise unittest.SkipTest(MISSING)


class Rows(Cases):
    def test_reads_turns_whatever_they_are_called_and_wrapped_in(self):
        wanted = ["b<|im_end|>\n"]
        turns = [user("a"), assistant("b")]
        shared = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
        for row in (turns, {"messages": turns}, {"messages": json.dumps(turns)},
                    {"conversations": json.dumps(shared)},
                    {"messages": [json.dumps(turn) for turn in turns]},
                    {"messages": [{"role": "User", "content": "a"},
                                  {"role": "Assistant", "content": "b"}]},
                    {"conversations": [{"from": "Human", "value": "a"},
                                       {"from": "GPT", "value": "b"}]},
                    {"conversations": [{"role": "user", "value": "a"},
                                       {"role": "assistant", "value": "b"}]},
                    {"messages": [user([{"type": "text", "value": "a"}]),
                                  assistant([{"type": "text", "text": "b"}])]},
                    {"prompt": turns[:1], "completion": turns[1:]},
                    {"instruction": "a", "input": None, "output": "b", "history": None},
                    {"instruction": "a", "input": float("nan"), "output": "b"},
                    {"messages": [user("a", tool_calls=[]), assistant("b", tool_calls=[])],
                     "tools": []},
                    {"conversations": shared, "tools": "[]"},
                    {"conversations": shared, "tools": ""},
                    {"messages": turns, "label": True, "images": [], "image": None},
                    {"messages": turns, "label": 1}, {"messages": turns, "label": "True"},
                    {"messages": turns, "label": None, "kto_tag": "yes"},
                    {"messages": [], "conversations": shared}, {"messages": turns, "tools": {}},
                    {"messages": [turns[0], assistant("b", tool_calls="", function_call={})]},
                    {"messages": turns, "image": float("nan"), "tools": float("nan"),
                     "system": float("nan"), "label": float("nan")},
                    {"messages": [turns[0], assistant("b", weight=float("nan"))]},
                    {"instruction": "", "input": "a", "output": "b", "history": float("nan")}):
            with self.subTest(row=row):
                self.assertEqual(self.trained(row), wanted)
                self.assertEqual(self.text(row), "<|im_start|>user\na<|im_end|>\n"
                                 "<|im_start|>assistant\nb<|im_end|>\n")

    def test_trains_on_completions_and_on_earlier_answers_of_a_history(self):
        self.assertEqual(self.trained({"prompt": TALK[:3], "completion": TALK[3:]}),
                         ["d<|im_end|>\n"])
        self.assertEqual(self.trained({"instruction": "c", "output": "d", "history": [["a", "b"]]}),
                         ["b<|im_end|>\n", "d<|im_end|>\n"])

    def test_trains_on_completions_that_are_text_as_trl_does(self):
        # Without the template: the prompt, the completion, the token that ends a text.
        row = {"prompt": "Q: a\nA:", "completion": " b"}
        for template in (CHATML, MARKED):
            self.assertEqual(self.encode(row, template)[0],
                             [("Q: a\nA:", False), (" b<|endoftext|>", True)])
        self.assertEqual(self.encode({"question": "a", "answer": "b"},
                                     renamed={"question": "prompt", "answer": "completion"})[0],
                         [("a", False), ("b<|endoftext|>", True)])
        ends = {"prompt": "a", "completion": "b<|endoftext|>"}
        self.assertEqual(self.trained(ends), ["b<|endoftext|>"])
        self.assertEqual(self.encode(row, begins="<s>")[0],
                         [("<s>Q: a\nA:", False), (" b<|endoftext|>", True)])
        self.assertEqual(self.trained(row, train_on="all"), ["Q: a\nA: b<|endoftext|>"])
        self.assertEqual(self.trained(row, train_on="last"), [" b<|endoftext|>"])
        self.assertEqual(self.trained({"prompt": "", "completion": "b"}), ["b<|endoftext|>"])
        self.assertEqual(self.trained(row, end=""), [" b"])

    def test_leaves_out_plain_completions_that_teach_nothing_or_need_a_template(self):
        self.assertIn("an empty assistant turn",
                      self.left_out({"prompt": "a", "completion": " "}))
        for row in ({"prompt": "a", "completion": [assistant("b")]}, {"prompt": "a"},
                    {"prompt": [user("a")], "completion": "b"}):
            self.assertIn("the known forms", self.left_out(row))
        self.assertIn("--map prompt=instruction,completion=output",
                      self.left_out({"prompt": "a", "completion": "b", "system": "s"}))
        self.assertIn("no text under 'prompt'",
                      self.left_out({"messages": TALK}, form="completion"))

    def test_translates_names(self):
        for row, renamed in (
                ({"question": "a", "answer": "b"}, {"question": "instruction", "answer": "output"}),
                ({"dialog": [{"who": "user", "says": "a"}, {"who": "bot", "says": "b"}]},
                 {"dialog": "messages", "who": "role", "says": "content"}),
                ({"dialog": json.dumps([user("a"), assistant("b")])}, {"dialog": "conversations"})):
            with self.subTest(row=row):
                self.assertEqual(self.trained(row, renamed=renamed), ["b<|im_end|>\n"])
                self.assertIn("the known forms", self.left_out(row))

    def test_prefers_what_is_mapped_to_what_is_called_so(self):
        turns, others = [user("a"), assistant("b")], [user("x"), assistant("y")]
        swapped = [{"role": "assistant", "content": "a", "who": "user", "from": "web"},
                   {"role": "user", "value": "y", "who": "bot", "content": "b"}]
        question = {"question": "instruction", "answer": "output"}
        for row, renamed in (
                ({"question": "a", "answer": "b", "instruction": "x", "output": "y"}, question),
                ({"instruction": "b", "output": "a"},
                 {"instruction": "output", "output": "instruction"}),
                ({"dialog": turns, "messages": others}, {"dialog": "messages"}),
                ({"dialog": turns, "messages": others}, {"dialog": "conversations"}),
                ({"messages": swapped}, {"who": "role"}),
                ({"messages": [json.dumps(turn) for turn in swapped]}, {"who": "role"}),
                ({"messages": {"who": ["user", "bot"], "says": ["a", "b"]}},
                 {"who": "role", "says": "content"})):
            for order in (1, -1):
                with self.subTest(row=row, order=order):
                    row = dict(list(row.items())[::order])
                    self.assertEqual(self.text(row, renamed=renamed), "<|im_start|>user\na"
                                     "<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n")

    def test_leaves_out_what_cannot_be_trained_on_and_says_why(self):
        for row, said in (
                ({"messages": TALK, "label": False}, "its data reject ('label' is false)"),
                ({"messages": TALK, "label": 0}, "its data reject ('label' is 0)"),
                ({"messages": TALK, "label": 0.0}, "its data reject ('label' is 0.0)"),
                ({"messages": TALK, "label": "False"}, "its data reject ('label' is \"False\")"),
                ({"messages": TALK, "kto_tag": " false "}, "its data reject ('kto_tag' is"),
                ({"messages": TALK, "images": ["a.png"]}, "not text (it comes with 'images'"),
                ({"messages": TALK, "image": "a.png"}, "not text (it comes with 'image'"),
                ({"chosen": TALK, "rejected": TALK}, "a rejected answer"),
                ({"messages": "hello"}, "'messages' is no list"),
                ({"messages": [user("a"), {"role": "assistant", "tool_calls": [{}]}]},
                 "without a name"),
                ({"conversations": [{"from": "function_call", "value": "no JSON"}]},
                 "calls a tool"),
                ({"instruction": "a", "output": "b", "history": "c"}, "'history' is no list"),
                ({"messages": None, "id": 1}, "(it has id)"),
                ({"messages": ["a", "b"]}, "turn 1 is no JSON object"),
                ({"messages": [user("a"), {"content": "b"}]}, "turn 2 has neither"),
                ({"messages": [user("a"), {"from": "gpt", "value": "b"}]},
                 "'role' and others 'from'"),
                ({"messages": {"role": ["user", "assistant"], "content": ["a"]}},
                 "differ in length"),
                ({"messages": TALK, "system": ["s"]}, "('system' is of type list)"),
                ({"messages": TALK, "functions": [1]}, "'functions' is no list"),
                ({"messages": [user("a"), assistant("b", reasoning=["h"])]},
                 "('reasoning' of message 2")):
            with self.subTest(row=row):
                self.assertIn(said, self.left_out(row))

    def test_leaves_out_what_is_nested_too_deeply(self):
        for depth in (200, 700, 960, 990, 99_999):
            for begin, end in (("[", "]"), ('{"a":', "}")):
                deep = begin * depth + "1" + end * depth
                for text in ('{"messages": [{"role": "user", "content": "\\ud800", "a": @}]}',
                             '{"messages": [{"role": "assistant", "content": "b"}], "tools": [@]}',
                             '{"messages": @}',
                             '{"instruction": "a", "output": "b", "history": @}'):
                    self.assertRegex(self.left_out(text.replace("@", deep).encode()),
                                     "not JSON|known forms")
        self.assertIn("nested deeper", self.left_out(
            {"messages": TALK, "tools": '[{"a": ' + "[" * 700 + "]" * 700 + "}]"}))

    def test_takes_a_first_turn_of_the_assistants(self):
        row = {"conversations": [{"from": "gpt", "value": "hi"}, {"from": "human", "value": "a"},
                                 {"from": "gpt", "value": "b"}]}
        for template in (CHATML, NEEDS_MESSAGES):
            self.assertEqual(self.trained(row, template), ["hi<|im_end|>\n", "b<|im_end|>\n"])
        preset = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou.<|im_end|>\n" \
                 "{% endif %}"
        for template in (preset + CHATML, preset + NEEDS_MESSAGES,
                         "{% if messages and messages[0].role != 'system' %}<|im_start|>system\n"
                         "You.<|im_end|>\n{% endif %}" + CHATML):
            self.assertEqual(self.trained(row, template), ["hi<|im_end|>\n", "b<|im_end|>\n"])
        self.assertEqual(self.trained(row, DISTILLED), ["hi<|eos|>", "b<|eos|>"])


class Marks(Cases):
    def test_masks_the_turns_that_data_want_masked(self):
        for mark in ({"loss": False}, {"trainable": False}, {"train": False}, {"training": False},
                     {"loss_weight": 0}, {"loss_weight": 0.0}, {"loss_scale": 0.0}, {"weight": 0},
                     {"mask": True}, {"loss_mask": 0}):
            for template, end in ((CHATML, "\n"), (MARKED, "")):
                with self.subTest(mark=mark, marked=template == MARKED):
                    bad = assistant("b", **mark)
                    row = {"messages": [user("a"), bad, *TALK[2:]]}
                    self.assertEqual(self.trained(row, template), ["d<|im_end|>" + end])
                    self.assertIn("b<|im_end|>", self.text(row, template))
                    self.assertEqual(self.left_out({"messages": [user("a"), bad]}, template),
                                     "no assistant turn is marked to be trained on ()")
                    row = {"messages": [*TALK[:2], user("c"), assistant("d", **mark)]}
                    self.assertEqual(self.trained(row, template), ["b<|im_end|>" + end])
                    self.assertIn("its last one", self.left_out(row, template, train_on="last"))
        shared = {"conversations": [{"from": "human", "value": "a"},
                                    {"from": "gpt", "value": "b", "loss": False},
                                    {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}
        self.assertEqual(self.trained(shared), ["d<|im_end|>\n"])
        pieces, _ = self.encode(shared, train_on="all")
        self.assertEqual([text for text, trained in pieces if not trained],
                         ["<|im_start|>assistant\nb<|im_end|>\n"])

    def test_trains_on_turns_whose_marks_say_so_and_weighs_none(self):
        for mark in ({"loss": True}, {"weight": 1}, {"weight": 1.0}, {"mask": False},
                     {"train": None}):
            self.assertEqual(self.trained({"messages": [user("a"), assistant("b", **mark)]}),
                             ["b<|im_end|>\n"])
        for mark in ({"weight": 0.5}, {"loss_scale": 2}, {"train": "no"},
                     {"train_detail": [{"begin_offset": 0, "end_offset": 0, "train": False}]}):
            self.assertIn("neither 0 nor 1", self.left_out(
                {"messages": [user("a"), assistant("b", **mark)]}))


    def test_leaves_out_rows_whose_weight_is_0_and_weighs_none(self):
        for more in ({"messages": TALK}, {"instruction": "a", "output": "b"},
                     {"prompt": "a", "completion": "b"},
                     {"conversations": [{"from": "human", "value": "a"},
                                        {"from": "gpt", "value": "b"}]}):
            for weight in (0, 0.0, False, "0", "0.0"):
                self.assertEqual(self.left_out({**more, "weight": weight}),
                                 "no assistant turn is marked to be trained on "
                                 "(the row's 'weight' is 0)")
            for weight in (1, 1.0, True, "1", None, "", "12 kg", [3], float("nan")):
                self.assertEqual(self.trained({**more, "weight": weight}), self.trained(more))
            for weight in (0.5, 2, -1, "0.5", float("inf"), 10**400):
                self.assertIn("neither 0 nor 1", self.left_out({**more, "weight": weight}))


class LongTexts(unittest.TestCase):
    def encoder(self, first_space=False):
        from corpus import chat_encode
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = (pre_tokenizers.Metaspace(prepend_scheme="always") if first_space else
                              pre_tokenizers.ByteLevel(add_prefix_space=False))
        made.decoder = (decoders.Metaspace(prepend_scheme="always") if first_space else
                        decoders.ByteLevel())
        made.train_from_iterator(["the wind and the water, waters and winds\n\n über 12"] * 3,
                                 trainers.BpeTrainer(vocab_size=330, show_progress=False,
                                                     special_tokens=["<|im_start|>", "<|im_end|>"],
                                                     initial_alphabet=sorted({
                                                         *pre_tokenizers.ByteLevel.alphabet(),
                                                         *"\n\tü🌊▁_"})))
        return chat_encode.ChatEncoder(chat_encode.ChatSettings(
            made.to_str(), False, {"default": CHATML}, TOKENS, datetime.datetime(2024, 2, 29),
            "t.jinja", None, {}, "assistant", None, False, 0.0, "<|endoftext|>"))

    def test_gives_the_same_tokens_in_pieces(self):
        import random
        from corpus import chat_encode
        from unittest import mock
        seed = 7
        draw = random.Random(seed)
        words = ["the", " ", "wind", "\n", "\n\n", "  ", "über", " 12", "water,", "\t", "🌊", "'s"]
        for first_space in (False, True):
            encoder = self.encoder(first_space)
            for _ in range(20):
                rows = [json.dumps({"messages": [
                    {"role": role, "content": "x" + "".join(draw.choices(words, k=300)) + "y"}
                    for role in ("user", "assistant") * 2]}).encode()]
                whole = encoder.encode(rows).sides["train"]
                sizes, encoded = [], encoder._encoded
                with mock.patch.multiple(chat_encode, LONG_CHARACTERS=200, CUT_TRIES=90,
                                         CUT_CONTEXT=20), mock.patch.object(
                                             encoder, "_encoded",
                                             lambda text: sizes.append(len(text)) or encoded(text)):
                    cut = encoder.encode(rows).sides["train"]
                self.assertEqual((cut.raw, cut.mask), (whole.raw, whole.mask), seed)
                if not first_space:
                    self.assertLess(max(sizes), 201)

MISSING = ""
if __name__ == "__main__":
    MISSING = missing()
    unittest.main()
