"""sluice/_core.pyi matches sluice._core: names, and the parameters of each function.

pybind11 writes the signatures of bound functions into docstrings.
"""

import ast
import re
import unittest
from pathlib import Path

from sluice import _core

STUB = Path(_core.__file__).parent / "_core.pyi"
OF_PYBIND11 = {"_pybind11_conduit_v1_"}
OF_ENUMS = {"__init__", "name", "value"}


def parameters_in(text):
    """The names before colons outside of brackets."""
    depth, names = 0, []
    for part in re.split(r"([\[\](),])", text):
        if part in ("[", "("):
            depth += 1
        elif part in ("]", ")"):
            depth -= 1
        elif depth == 0 and (match := re.match(r"\s*(\w+): ", part)):
            names.append(match[1])
    return [it for it in names if it != "self"]


def bound_signatures(function):
    """Names of parameters by overload; unnamed parameters are arg0, arg1, ..."""
    lines = (function.__doc__ or "").splitlines()
    found = [re.match(r"(?:\d+\. )?\w+\((.*)\) -> ", line) for line in lines]
    return [parameters_in(it[1]) for it in found if it and not it[1].startswith("*args")]


def bound(scope):
    """name -> signatures, or None if it is not a function."""
    found = {}
    for name in vars(scope):
        value = getattr(scope, name)
        if name in OF_PYBIND11 or (name.startswith("__") and name != "__init__"):
            continue
        signatures = bound_signatures(value) if callable(value) else []
        if name != "__init__" or signatures:
            found[name] = signatures if callable(value) and signatures else None
    return found


def stubbed(body):
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            names = [it.arg for it in node.args.args if it.arg != "self"]
            is_property = any(ast.unparse(it) == "property" for it in node.decorator_list)
            if is_property:
                found[node.name] = None
            else:
                found.setdefault(node.name, []).append(names)
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = None
        elif isinstance(node, ast.ClassDef):
            found[node.name] = None
    return found


class Stub(unittest.TestCase):
    maxDiff = None

    def compare(self, where, module, stub):
        self.assertEqual(sorted(module), sorted(stub), where)
        for name, signatures in module.items():
            said = stub[name]
            if signatures is None or said is None:
                self.assertEqual(signatures, said, f"{where}.{name}")
                continue
            self.assertEqual(len(signatures), len(said), f"{where}.{name}")
            for one, other in zip(signatures, said):
                self.assertEqual(len(one), len(other), f"{where}.{name}")
                for own, name_said in zip(one, other):
                    if not re.fullmatch(r"arg\d+", own):
                        self.assertEqual(own, name_said, f"{where}.{name}")

    def test_has_the_modules_names_and_parameters(self):
        body = ast.parse(STUB.read_text(encoding="utf-8")).body
        self.compare("_core", bound(_core), stubbed(body))
        for node in body:
            if not isinstance(node, ast.ClassDef) or node.bases:  # exceptions inherit theirs
                continue
            found = bound(getattr(_core, node.name))
            if hasattr(getattr(_core, node.name), "__members__"):
                found = {name: it for name, it in found.items() if name not in OF_ENUMS}
            self.compare(node.name, found, stubbed(node.body))


if __name__ == "__main__":
    unittest.main()
