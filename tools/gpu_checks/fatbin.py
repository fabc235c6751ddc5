"""The code for GPUs in a shared library: containers of entries, one for each architecture.

The layout is that of CUDA's fatbinary.h and of what cuobjdump lists: a container begins with MAGIC, its version, the
size of its header and that of what follows. An entry has its kind, the sizes of its header and of its code, and at 28
its architecture. All numbers are little-endian.
"""

import struct

MAGIC = 0xBA55ED50
LINKED, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"  # what is loaded; and what was linked into it, which nothing reads again


def sections(data):
    """{name: (offset, bytes)} of an ELF file of 64 bits."""
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("expected an ELF file of 64 bits")
    table = struct.unpack_from("<Q", data, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + at * size) for at in range(count)]
    found = {}
    for name, _, _, _, offset, length in headers:
        begin = headers[names][4] + name
        found[data[begin : data.index(b"\0", begin)].decode()] = (offset, length)
    return found


def zero(data, begin, length):
    data[begin : begin + length] = bytes(length)


def keep_entries(data, begin, end, architecture):
    """Zeros the code of other architectures in a section; the bytes of what stays."""
    kept, at = 0, begin
    while at + 16 <= end:
        magic, _, header, length = struct.unpack_from("<IHHQ", data, at)
        if magic != MAGIC:
            at += 8  # padding between containers
            continue
        entry, at = at + header, at + header + length
        if at > end:
            raise ValueError(f"a container of {length} bytes reaches beyond its section")
        while entry < at:
            _, _, entry_header, code = struct.unpack_from("<HHIQ", data, entry)
            if entry_header < 32 or entry + entry_header + code > at:
                raise ValueError(f"an entry of {entry_header} and {code} bytes does not fit in its container")
            if struct.unpack_from("<I", data, entry + 28)[0] == architecture:
                kept += code
            else:
                zero(data, entry + entry_header, code)
            entry += entry_header + code
    return kept


def keep_only(data, architecture):
    """Of a library's bytes; how many bytes of code are left."""
    found = sections(data)
    if LINKED not in found:
        raise ValueError(f"it has no section {LINKED}, so no code for GPUs")
    offset, length = found[LINKED]
    kept = keep_entries(data, offset, offset + length, architecture)
    if kept == 0:
        raise ValueError(f"it has no code for sm_{architecture}")
    if RELOCATABLE in found:
        zero(data, *found[RELOCATABLE])
    return kept
