"""Prints the numbers of nf4_goldens.h, computed by bitsandbytes on the CPU.

    pip download --no-deps bitsandbytes==0.50.2 and unpack it, with torch 2.11.0 and packaging:
    PYTHONPATH=FOLDER python3 tests/offload/make_nf4_goldens.py > tests/offload/nf4_goldens.h

The 8-bit codes of scales are those of bitsandbytes' generic operation, which finds the nearest like
the CUDA kernels do. Its CPU kernel first rounds to one of 65,536 steps.
"""

import bitsandbytes.functional as bnb
import torch

BLOCK = 64


def fnv(tensor):
    """FNV-1a in 64 bits of the tensor's bytes."""
    found = 0xcbf29ce484222325
    for byte in tensor.contiguous().view(torch.uint8).flatten().tolist():
        found = (found ^ byte) * 0x100000001b3 & (1 << 64) - 1
    return found


def numbers(count):
    """Like normal weights of 313 blocks and one short one, with sizes that differ by the block."""
    i = torch.arange(count, dtype=torch.int64)
    sums = sum((i * odd >> 3) % 4093 - 2046 for odd in (40503, 30011, 65213, 7919))
    return sums.float() * 2.0 ** -(12 + (i // BLOCK * 5 % 7)).float()


def halves(dtype, mixed):
    """All values of 16 bits, with 0 for those that are not finite."""
    bits = torch.arange(1 << 16, dtype=torch.int64)
    bits = bits * 40503 % (1 << 16) if mixed else bits
    values = bits.to(torch.int32).to(torch.uint16).view(dtype).float()
    return torch.where(values.isfinite(), values, torch.zeros(()))


def encoded(values):
    codes, state = bnb.quantize_4bit(values, quant_type="nf4")
    return codes.flatten(), state, bnb.dequantize_4bit(codes, state)


def main():
    print("// Made by make_nf4_goldens.py with bitsandbytes 0.50.2. Hashes are FNV-1a.\n#pragma once\n")
    print("#include <cstdint>\n\nnamespace sluice::offload::golden {\n")
    print("struct Hashes {\n  std::uint64_t codes, scales, values;\n};")

    def show(name, codes, scales, values):
        print(f"inline constexpr Hashes {name} = {{0x{fnv(codes):016x}, 0x{fnv(scales):016x},"
              f"\n    0x{fnv(values):016x}}};")

    values = numbers(20000)
    codes, state, back = encoded(values)
    show("kNf4", codes, state.absmax, back)
    for name, dtype in (("Bf16", torch.bfloat16), ("Fp16", torch.float16)):
        for mixed in (False, True):
            codes, state, back = encoded(halves(dtype, mixed))
            show(f"k{name}{'Mixed' if mixed else ''}", codes, state.absmax, back)

    codes, state, _ = encoded(values)
    offset = state.absmax.mean()
    rest = state.absmax - offset
    code = bnb.create_dynamic_map()
    # In fp64, for which there is no CPU kernel, the generic operation.
    absmax, scales = torch.ops.bitsandbytes.quantize_blockwise(rest.double(), code, 256)
    state.absmax = torch.ops.bitsandbytes.dequantize_blockwise(
        absmax, scales, code, 256, torch.float32) + offset
    show("kNf4Double", codes, absmax, bnb.dequantize_4bit(codes, state))
    print(f"inline constexpr float kOffset = {offset.item():.9g}F;")
    print("inline constexpr float kGroupScales[] = {" +
          ", ".join(f"{value:.9g}F" for value in scales.tolist()) + "};")
    show("kDynamic8", torch.zeros(0), torch.zeros(0), code)
    print("\n}  // namespace sluice::offload::golden")


main()
