"""Tensors for the tests: of every type and layout, with values that every rank can compute for every other."""

import torch

SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SMALL_FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2]
COMPLEX = [torch.complex64, torch.complex128]
ALL = SIGNED + UNSIGNED + FLOATS + SMALL_FLOATS + COMPLEX + [torch.bool]

LAYOUTS = ["plain", "transposed", "sliced", "offset"]


def is_integer(dtype):
    return dtype in SIGNED or dtype in UNSIGNED


def wide(tensor):
    """The same values in a type in which everything can be computed and compared."""
    if tensor.dtype == torch.bool or is_integer(tensor.dtype):
        return tensor.to(torch.int64)
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def values(count, dtype, seed):
    """Small whole numbers (half of them, for floats, with a quarter more): sums of a few are exact in most types."""
    generator = torch.Generator().manual_seed(seed)
    low = 0 if dtype in UNSIGNED or dtype == torch.bool else -3
    whole = torch.randint(low, 2 if dtype == torch.bool else 4, (count,), generator=generator)
    if dtype.is_complex:
        other = torch.randint(-3, 4, (count,), generator=generator)
        return torch.complex(whole.to(torch.float64), other.to(torch.float64)).to(dtype)
    return whole.to(torch.float64).to(dtype) if dtype.is_floating_point else whole.to(dtype)


def laid_out(tensor, layout):
    """A tensor with the values of this one-dimensional one, in memory of another layout."""
    count = tensor.numel()
    if layout == "transposed" and count % 2 == 0 and count > 0:
        made = torch.empty((count // 2, 2), dtype=tensor.dtype).t()
        return made.copy_(tensor.view(2, count // 2))
    if layout == "sliced":
        return torch.empty(3 * count, dtype=tensor.dtype)[::3].copy_(tensor)
    if layout == "offset":
        return torch.empty(count + 1, dtype=tensor.dtype)[1:].copy_(tensor)
    return tensor.clone()


TOLERANCE = {
    torch.float8_e4m3fn: 0.13,
    torch.float8_e5m2: 0.26,
    torch.bfloat16: 0.02,
    torch.float16: 3e-3,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
}


def expect(got, wanted, what):
    """Equal, or nearly so where rounding depends on the order. wanted: in the type of wide()."""
    dtype = got.dtype
    got = wide(got).reshape(-1)
    wanted = wide(wanted.to(dtype)).reshape(-1)
    if got.shape != wanted.shape:
        raise AssertionError(f"{what}: expected {tuple(wanted.shape)} elements, got {tuple(got.shape)}")
    bound = TOLERANCE.get(dtype, 1e-12) if not is_integer(dtype) and dtype != torch.bool else 0
    far = (got - wanted).abs() > bound * wanted.abs().clamp(min=1) if bound else got != wanted
    if far.any():
        at = int(far.nonzero()[0])
        raise AssertionError(f"{what}: element {at} of {got.numel()} is {got[at].item()}, expected {wanted[at].item()}")
