"""The check of prose in tools/lint: what it finds in Markdown and in comments, and its counts."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

from docs_parts import prose

LONG = "This sentence " + "goes further and " * 10 + "ends."  # 33 words


def found(text, name="page.md"):
    return list(prose.findings(name, text))


def lines(text, name="page.md"):
    return [line for line, _ in found(text, name)]


class Sentences(unittest.TestCase):
    def test_names_those_that_begin_with_a_word_that_no_sentence_begins_with(self):
        for word in ("Of", "Those", "As", "Likewise"):
            self.assertRegex(found(f"One ends here. {word} this, more.")[0][1],
                             f"begins with \"{word}\": {word} this, more")
        self.assertEqual(found("Often. Thoseby. Assume that of those, as said. `Of` is code."), [])

    def test_finds_beginnings_in_headings_items_cells_and_after_a_line_break(self):
        text = ("# Of headings\n\n- Of items\n2. Of others\n\n| Of cells | x |\n|---|---|\n\n"
                "A sentence ends.\nOf the next one, this.\n\nIt ends.** Of** bold.\n")
        self.assertEqual(lines(text), [1, 3, 4, 6, 10, 12])

    def test_names_words_with_what_to_write_instead(self):
        for text, word in (("It runs beside others.", "beside"), ("It comes behind it.", "behind"),
                           ("The state lies there.", "lies"), ("Training goes on.", "goes on"),
                           ("It is told so.", "is told"), ("It knows the model.", "knows"),
                           ("It takes what is\nthere.", "what is there"),
                           ("Whoever reads.", "Whoever"), ("There is nobody.", "nobody")):
            ((line, what),) = found(text)
            self.assertEqual(line, 1)
            self.assertRegex(what, f"\\A\"{word}\": write ")

    def test_leaves_words_that_only_look_alike(self):
        self.assertEqual(found("Besides, it lies between two. What `lies beside` it is code.\n"
                               "It sits behind a proxy, and relies on what was known.\n"
                               "It goes on the GPU. See [a name](beside.md)."), [])

    def test_counts_words_of_a_sentence_and_not_of_the_code_in_it(self):
        ((line, what),) = found(f"A short one.\nAnother. {LONG}\n")
        self.assertEqual((line, what.split(":")[0]), (2, "a sentence of 33 words, 30 at most"))
        self.assertEqual(found("Run `" + "sluice train and more " * 10 + "` now."), [])
        self.assertEqual(found("- " + "five words are in this\n- " * 20), [])
        self.assertEqual(len(found("- " + "five words are in this\n  " * 20)), 1)

    def test_a_point_in_a_name_or_an_abbreviation_ends_no_sentence(self):
        text = "See e.g. " + "The plan of step.h and v2.5 for " * 5 + "it."
        self.assertEqual(len(found(text)), 1)

    def test_leaves_out_fences_lengths_of_cells_and_comments(self):
        self.assertEqual(found(f"```text\nOf this {LONG}\n```\n\n| {LONG} |\n|---|\n"
                               f"<!-- Of this\n{LONG} -->\n"), [])
        self.assertEqual(lines("```sh\nls\n```\nOf this."), [4])
        self.assertEqual(lines("- item\n\n    ```sh\n    ls\n    ```\n\n    Of this."), [7])


class Comments(unittest.TestCase):
    def test_of_cpp_continue_over_lines_and_end_with_their_section(self):
        code = ("// Of the header, this.\n#pragma once\nint lies = 0;  // It goes on.\n"
                'char text[] = "// Of no comment";\n// It ends\n// here. As this does.\n')
        self.assertEqual(lines(code, "a.h"), [1, 3, 6])
        half = " ".join(["word"] * 20)
        self.assertEqual(lines(f"// {half}\n// {half}.\n", "a.cc"), [1])
        self.assertEqual(lines(f"// {half}\n//\n// {half}\nint x;\n// {half}\n", "a.cc"), [])

    def test_of_python_are_comments_and_docstrings(self):
        code = ('#!/usr/bin/env python3\n"""Of this module."""\n\ndef f():\n    """Fine.\n\n'
                '    As said.\n    """\n    x = """Of a string"""  # Those too.\n')
        self.assertEqual(lines(code, "a.py"), [2, 7, 9])


class Counts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-prose-test-")
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / prose.COUNTS).parent.mkdir(parents=True)

    def check(self, counts, pages, fix=False):
        (self.root / prose.COUNTS).write_text(json.dumps(counts), encoding="utf-8")
        for name, text in pages.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text, encoding="utf-8")
        return prose.check(self.root, sorted(pages), fix)[0]

    def test_say_which_paths_are_checked(self):
        pages = {"a.md": "Of a.", "docs/deep/b.md": "One.\nOf b.", "other.md": "Of c."}
        wrong = self.check({"a.md": 0, "docs/*.md": 0}, pages)
        self.assertEqual([what.split(": ")[0] for what in wrong],
                         ["a.md:1", "a.md", "docs/deep/b.md:2", "docs/*.md"])

    def test_allow_what_there_was_and_no_more(self):
        self.assertEqual(self.check({"a.md": 2}, {"a.md": "Of a. Of b."}), [])
        wrong = self.check({"a.md": 1}, {"a.md": "Of a. Of b."})
        self.assertEqual(wrong[-1], f"a.md: 2 findings, and {prose.COUNTS} allows 1")

    def test_fall_with_the_findings(self):
        pages = {"a.md": "Of a.", "b.md": "Of b."}
        (wrong,) = self.check({"a.md": 3, "b.md": 1}, pages)
        self.assertIn("a.md has 1 findings, fewer than 3; tools/lint --fix", wrong)
        self.assertEqual(self.check({"a.md": 3, "b.md": 1}, pages, fix=True), [])
        self.assertEqual(prose.load_counts(self.root), {"a.md": 1, "b.md": 1})
        self.assertEqual(len(self.check({"a.md": 0, "b.md": 1}, pages, fix=True)), 2)
        self.assertEqual(prose.load_counts(self.root), {"a.md": 0, "b.md": 1})


if __name__ == "__main__":
    unittest.main()
