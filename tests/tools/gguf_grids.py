#!/usr/bin/env python3
"""Print libcoli/src/model/gguf_grids.c: the codebooks of GGUF's IQ1, IQ2 and IQ3 kinds.

    pip install gguf==0.19.0 numpy
    tests/tools/gguf_grids.py > libcoli/src/model/gguf_grids.c

The points are constants of the formats; the `gguf` package has them as tables, too, and its licence
(MIT) is named in the file.  A point becomes 16 bits: eight coordinates of two bits, or four of three.
"""
import numpy as np
from gguf import quants

HEAD = """/* gguf_grids.c - the codebooks of GGUF's IQ1, IQ2 and IQ3 kinds: which points their indices mean.
 *
 * These numbers define the formats and cannot be computed.  They are those of the tables in the `gguf`
 * package (https://pypi.org/project/gguf, version 0.19.0), written in our form by
 * tests/tools/gguf_grids.py; do not edit.  Copyright (c) 2023 Georgi Gerganov, MIT License: the whole
 * of it is in NOTICE.
 *
 * A point is 16 bits, coordinate 0 lowest: eight coordinates of two bits, or four of three.  What a
 * coordinate is worth stands in gguf_codebook.c. */
#include "gguf_codebook.h"

// clang-format off"""


def points(kind):
    kind.init_grid()
    values = np.array(kind.grid_map, dtype=np.float32)
    grid = kind.grid.reshape(kind.grid_shape)
    digits = np.argmax(grid[:, :, None] == values, axis=-1)  # (n, 8) or (n, 4)
    bits = 16 // grid.shape[1] if grid.shape[1] == 8 else 3
    return (digits << (bits * np.arange(grid.shape[1]))).sum(axis=-1)


def main():
    print(HEAD)
    for name, kind in [("iq1", quants.IQ1_S), ("iq2_xxs", quants.IQ2_XXS), ("iq2_xs", quants.IQ2_XS),
                       ("iq2_s", quants.IQ2_S), ("iq3_xxs", quants.IQ3_XXS), ("iq3_s", quants.IQ3_S)]:
        p = points(kind)
        print(f"const uint16_t coli__gguf_grid_{name}[{len(p)}] = {{")
        for i in range(0, len(p), 12):
            print("    " + " ".join(f"0x{x:04x}," for x in p[i:i + 12]))
        print("};")


main()
