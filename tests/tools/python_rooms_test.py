#!/usr/bin/env python3
"""Modules of the Python package import each other one way: python_rooms_test.py ROOT.

Every import counts, also within a function or only for types, and none is from tools/. The package
sluice_log imports neither tools/ nor sluice. No module uses a name of another module that begins
with an underscore, nor such a member of another object.
"""

import ast
import sys
from pathlib import Path

PACKAGE = "python/sluice"
# Lowest first: a module imports only those on lines above its own. A folder is one module.
ORDER = """
_build _core
_copies _engines _files _forks _progress _resident _tensors _threads ranks
_families _micro_batch _monitors units
_calls _module_changes _residency _setup _weights
_deferred_init
_client
_trained
_hooks _learning _records
_steps
_checkpoints _native _values
_plans _training
_engine_facts _runs
engine
__init__
_trainer_ranks deepspeed
_trainer_config
accelerate transformers
"""
# Members without a public name, of other libraries: PyTorch, transformers and Accelerate.
OF_OTHERS = set(
    "_C _attn_implementation _autograd _backward_cls _backward_hooks _backward_pre_hooks _buffers"
    " _current_frames _current_graph_task_id _forward_hooks _forward_pre_hooks"
    " _get_sequence_nr _global_backward_hooks _global_backward_pre_hooks _global_forward_hooks"
    " _global_forward_pre_hooks _models _n_gpu _non_persistent_buffers_set _parameters"
    " _post_accumulate_grad_hooks _sequence_nr _version".split())
OWN = ("self", "cls")


def modules_of(root):
    """Module name in the package -> its files."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        if "__pycache__" not in path.parts:
            name = path.relative_to(root).parts[0].removesuffix(".py")
            found.setdefault(name, []).append(path)
    return found


def imports(path, root, known):
    """(line, module of the package or name of another package, imported names)."""
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
    """module -> the modules of the package that it imports."""
    known = {*modules, "_core", "_build"}
    return {name: {to for path in paths for _, to, _ in imports(path, root, known)
                   if to in known and to != name} for name, paths in modules.items()}


def wrong_arrows(found):
    line_of = {name: number for number, line in enumerate(ORDER.split("\n"))
               for name in line.split()}
    for name, to in sorted(found.items()):
        if name not in line_of:
            yield f"{name} has no place in ORDER"
            continue
        for it in sorted(to):
            if line_of.get(it, len(ORDER)) >= line_of[name]:
                yield f"{name} imports {it}, which is not before it in ORDER"


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
    findings = list(wrong_arrows(found))
    for path in [path for paths in modules.values() for path in paths]:
        findings += private_uses(path, root, known)
        findings += from_tools(path, root, known, tools)
    for path in sorted((root.parent / "sluice_log").rglob("*.py")):
        for line, module, _ in imports(path, root.parent, set()):
            if module in {*tools, "sluice"}:
                findings.append(f"sluice_log/{path.name}:{line} imports {module}")
    print("\n".join(findings) or f"{len(modules)} modules, {sum(map(len, found.values()))} imports,"
          " none of them wrong")
    return 1 if findings else 0


sys.exit(main())
