#!/usr/bin/env python3
"""A GGUF file of the 35B's geometry with random weights, for another project's bench.

    pip install gguf==0.19.0 numpy safetensors
    tests/tools/gguf_bench.py LAYERS OUT.gguf

Experts in Q4_0, the rest in Q8_0: about the bits per weight of what `coli synth --layers LAYERS` makes.
"""
import sys

import gguf

from gguf_fixtures import finish
from gguf_geometry import config, write

N_VOCAB = 248320


def main():
    writer = write(sys.argv[2], config(int(sys.argv[1]), 4, 256), N_VOCAB)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(N_VOCAB)
    finish(writer)


main()
