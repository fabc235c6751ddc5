#!/usr/bin/env python3
"""Whether every file includes the standard headers whose names it uses, itself or through this repository's own headers.

usage: check_includes.py ROOT

The standard library's headers include one another, and each of its releases does that less: libstdc++ 13 has no
<cstdint> in <string> any more, 14 no <algorithm> in <memory>. A file that relies on it compiles with one compiler
only, and the next compiler may be on a machine where nobody can mend it. HEADERS has what is seen in this repository;
what every header of the library needs itself (<utility>, <cstddef>) is left out.
"""

import re
import sys
import tempfile
from pathlib import Path

FOLDERS = ["include", "src", "transports", "tests", "perf", "tools"]
SUFFIXES = {".h", ".cc", ".cpp", ".cu", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
ALGORITHMS = (
    "min|max|clamp|sort|stable_sort|find|find_if|find_if_not|copy|copy_n|copy_if|any_of|all_of|none_of|count|count_if|fill|fill_n|"
    "lower_bound|upper_bound|equal|equal_range|mismatch|remove_if|remove|transform|reverse|rotate|max_element|min_element|"
    "minmax_element|minmax|unique|binary_search|nth_element|generate|generate_n|shuffle|partition|for_each|search|is_sorted|"
    "includes|set_difference|next_permutation|swap_ranges"
)
HEADERS = {  # each with its names behind std::
    "algorithm": rf"(?:{ALGORITHMS})\s*[(<]",
    "array": r"array\b",
    "atomic": r"(?:atomic\w*|memory_order\w*)\b",
    "barrier": r"barrier\b",
    "bit": r"(?:bit_cast|bit_ceil|bit_floor|bit_width|popcount|countl_zero|countr_zero|has_single_bit)\b",
    "charconv": r"(?:from_chars|to_chars)\b",
    "chrono": r"chrono\b",
    "cmath": r"(?:isnan|isinf|isfinite|sqrt|pow|log|log2|exp|floor|ceil|round|lround|fabs|ldexp|nextafter|fma)\s*\(",
    "condition_variable": r"condition_variable\w*",
    "cstdint": r"u?int(?:_least|_fast)?(?:8|16|32|64|ptr|max)_t\b",
    "cstdio": r"(?:printf|fprintf|snprintf|vsnprintf|fputs|fflush|puts|fopen|fclose|fgets|FILE|perror|sscanf|fwrite|fread|rename|setvbuf)\b",
    "cstdlib": r"(?:getenv|abort|exit|_Exit|quick_exit|atoi|atol|strtol|strtoul|strtoull|strtod|malloc|free|calloc|system|aligned_alloc|atexit)\b",
    "cstring": r"(?:memcpy|memset|memcmp|memmove|strlen|strcmp|strncmp|strerror|strchr|strstr|strrchr)\b",
    "deque": r"deque\b",
    "fstream": r"(?:ifstream|ofstream|fstream)\b",
    "functional": r"(?:function|hash|plus|ref|cref|less|greater|not_fn|invoke|bind)\b",
    "future": r"(?:future|async|promise)\b",
    "iostream": r"(?:cout|cerr|cin|clog)\b",
    "limits": r"numeric_limits\b",
    "map": r"(?:map|multimap)\b",
    "memory": r"(?:unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared)\b",
    "mutex": r"(?:mutex|recursive_mutex|lock_guard|unique_lock|scoped_lock|call_once|once_flag)\b",
    "numeric": r"(?:accumulate|iota|gcd|lcm|partial_sum|inner_product|exclusive_scan)\b",
    "optional": r"(?:optional|nullopt)\b",
    "random": r"(?:mt19937\w*|random_device|uniform_\w+)\b",
    "set": r"(?:set|multiset)\b",
    "span": r"span\b",
    "sstream": r"(?:ostringstream|istringstream|stringstream)\b",
    "stdexcept": r"(?:runtime_error|logic_error|invalid_argument|out_of_range|length_error|overflow_error|range_error|domain_error)\b",
    "string": r"(?:string|to_string|stoi|stoul|stod|getline)\b",
    "string_view": r"string_view\b",
    "system_error": r"(?:system_error|error_code|errc|generic_category|system_category)\b",
    "thread": r"(?:thread|this_thread)\b",
    "tuple": r"(?:tuple|tie|make_tuple)\b",
    "type_traits": r"(?:is_\w+_v|is_\w+<|enable_if\w*|conditional\w*|remove_\w+_t|decay_t|underlying_type\w*|make_unsigned\w*|make_signed\w*)\b",
    "unordered_map": r"unordered_map\b",
    "variant": r"(?:variant|visit|holds_alternative|get_if)\b",
    "vector": r"vector\b",
}
NAMES = {header: re.compile(rf"\bstd::{names}") for header, names in HEADERS.items()}
BY_STANDARD = {"charconv": {"system_error"}, "string": {"string_view"}}  # what these have to define of the others


class Sources:
    def __init__(self, root):
        files = [file for folder in FOLDERS for file in (root / folder).rglob("*") if file.suffix in SUFFIXES]
        self.texts = {file: file.read_text() for file in sorted(files)}
        self.includes = {file: INCLUDE.findall(text) for file, text in self.texts.items()}
        self.ends = {}  # files by every end of their path
        for file in self.texts:
            parts = file.relative_to(root).parts
            for first in range(len(parts)):
                self.ends.setdefault("/".join(parts[first:]), []).append(file)

    def headers_of(self, file, seen):
        """Standard headers that come with a file."""
        if file in seen:
            return set()
        seen.add(file)
        found = set()
        for name in self.includes[file]:
            beside = file.parent / name
            own = [beside] if beside in self.texts else self.ends.get(name, [])
            for other in own:
                found |= self.headers_of(other, seen)
            if not own:
                found |= {name} | BY_STANDARD.get(name, set())
        return found

    def faults(self):
        for file, text in self.texts.items():
            there = self.headers_of(file, set())
            code = NOT_CODE.sub(" ", text)
            for header, names in NAMES.items():
                used = names.search(code)
                if used and header not in there:
                    yield f"{file}: {used.group(0)} without <{header}>"


def expect_to_find():
    """That a fault is one, and what comes through a header of ours is none."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "src/base").mkdir(parents=True)
        (root / "src/base/has.h").write_text("#include <cstdint>\n#include <algorithm>\n")
        (root / "src/good.cc").write_text('#include "base/has.h"\nstd::uint32_t a = std::max(1, 2);\n')
        (root / "src/bad.cc").write_text(
            "#include <string>\n// <cstdint> std::uint8_t\nstd::uint32_t a; std::sort(b);\n"
        )
        found = [fault.rpartition("/")[2] for fault in Sources(root).faults()]
    wanted = ["bad.cc: std::sort( without <algorithm>", "bad.cc: std::uint32_t without <cstdint>"]
    if found != wanted:
        sys.exit(f"of two planted faults this was found: {found}")


def main():
    expect_to_find()
    faults = list(Sources(Path(sys.argv[1]).resolve()).faults())
    print("\n".join(faults) or "every file includes what it uses")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
