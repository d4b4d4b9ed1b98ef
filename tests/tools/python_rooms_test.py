#!/usr/bin/env python3
"""Modules of the Python package import each other one way: python_rooms_test.py ROOT.

Every import counts, also one within a function or for types alone, and none is from tools/. No
module uses a name of another one that begins with an underscore, nor such a member of an object
that is not itself.
"""

import ast
import sys
from pathlib import Path

PACKAGE = "engine/python/sluice"
# What is still to go.
CIRCLES, PRIVATE, FROM_TOOLS = 1, 113, 6
# Members of other libraries that have no public name: PyTorch's, transformers' and Accelerate's.
OF_OTHERS = set(
    "_C _attn_implementation _autograd _backward_cls _backward_hooks _backward_pre_hooks _buffers"
    " _current_frames _current_graph_task_id _forward_hooks _forward_pre_hooks"
    " _get_sequence_nr _global_backward_hooks _global_backward_pre_hooks _global_forward_hooks"
    " _global_forward_pre_hooks _models _n_gpu _non_persistent_buffers_set _parameters"
    " _post_accumulate_grad_hooks _sequence_nr _version".split())
OWN = ("self", "cls")


def modules_of(root):
    """Its name in the package -> the files of it."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        if "__pycache__" not in path.parts:
            name = path.relative_to(root).parts[0].removesuffix(".py")
            found.setdefault(name, []).append(path)
    return found


def imports(path, root, known):
    """(line, module of the package or name of another package, names that are imported from it)."""
    depth = len(path.relative_to(root).parts) - 1
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for it in node.names:
                yield node.lineno, it.name.split(".")[0], []
        elif isinstance(node, ast.ImportFrom):
            names = [it.name for it in node.names]
            if node.level == 0:
                yield node.lineno, str(node.module).split(".")[0], names
            elif node.level == depth + 1 and node.module:
                yield node.lineno, node.module.split(".")[0], names
            elif node.level == depth + 1:  # from . import a module, or a name of __init__.py
                for name in names:
                    yield node.lineno, name if name in known else "__init__", []
            elif names and not node.module:  # within a folder
                continue
            else:
                yield node.lineno, path.relative_to(root).parts[0], names


def arrows(root, modules):
    """module -> those of the package that it imports."""
    known = {*modules, "_core", "_build"}
    return {name: {to for path in paths for _, to, _ in imports(path, root, known)
                   if to in known and to != name} for name, paths in modules.items()}


def circles(found):
    """Sets of modules that reach each other."""
    reach = {}

    def follow(name, seen):
        for to in found.get(name, ()):
            if to not in seen:
                seen.add(to)
                follow(to, seen)
        return seen

    for name in found:
        reach[name] = follow(name, set())
    return {frozenset(to for to in reach[name] if name in reach.get(to, ()))
            for name in found if name in reach[name]}


def private_uses(path, root, known):
    for line, module, names in imports(path, root, known):
        for name in names if module in known else ():
            if name.startswith("_") and not name.startswith("__"):
                yield f"{path.name}:{line} imports {name} from {module}"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or \
                node.attr.startswith("__") or node.attr in OF_OTHERS:
            continue
        of = node.value
        is_own = isinstance(of, ast.Name) and of.id in OWN
        is_super = isinstance(of, ast.Call) and ast.unparse(of.func) == "super"
        if not is_own and not is_super:
            yield f"{path.name}:{node.lineno} uses {ast.unparse(node)}"


def from_tools(path, root, known, tools):
    for line, module, _ in imports(path, root, known):
        if module in tools:
            yield f"{path.name}:{line} imports {module} from tools/"


def main():
    top = Path(sys.argv[1])
    root = top / PACKAGE
    modules = modules_of(root)
    known = {*modules, "_core", "_build"}
    tools = {path.stem for path in (top / "tools").iterdir()
             if path.suffix == ".py" or (path / "__init__.py").is_file()}
    found = arrows(root, modules)
    in_circles = circles(found)
    files = [path for paths in modules.values() for path in paths]
    uses = [it for path in files for it in private_uses(path, root, known)]
    below = [it for path in files for it in from_tools(path, root, known, tools)]
    print(f"{len(modules)} modules, {sum(map(len, found.values()))} imports, "
          f"{len(in_circles)} circles, {len(uses)} uses of what is private to others, "
          f"{len(below)} imports from tools/")
    if len(in_circles) <= CIRCLES and len(uses) <= PRIVATE and len(below) <= FROM_TOOLS:
        return 0
    print("\n".join([f"{', '.join(sorted(it))} import each other" for it in in_circles] +
                    uses + below))
    return 1


sys.exit(main())
