#!/usr/bin/env python3
"""A pair of layers of the 35B's dims as GGUF, converted, against what the `gguf` package reads in it.

    pip install gguf==0.19.0 numpy safetensors
    tests/tools/gguf_geometry.py build/bin/coli [SCRATCH]

A layer of DeltaNet and one of attention with eight experts each, in Q8_0 and Q4_0, whose scales have
both signs: the container must hold the package's numbers to the bit.  It is read here once more, from
docs/formats/container.md, so that nothing of ours stands on both sides.
"""
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf.quants import dequantize

from gguf_fixtures import finish, gguf_name, random_blocks, to_checkpoint, write_metadata

D, F = 2048, 512
CONFIG = {"max_position_embeddings": 4096, "hidden_size": D, "num_attention_heads": 16, "head_dim": 256,
          "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
          "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25,
                              "mrope_section": [11, 11, 10]},
          "num_experts_per_tok": 8, "moe_intermediate_size": F,
          "shared_expert_intermediate_size": F, "linear_conv_kernel_dim": 4,
          "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
          "linear_value_head_dim": 128}


def config(n_layer, interval, n_expert):
    """Every interval-th layer has attention, the others DeltaNet."""
    return {**CONFIG, "num_hidden_layers": n_layer, "full_attention_interval": interval,
            "num_experts": n_expert}


def tensors(c, V):
    """(name in the checkpoint, kind, shape)"""
    E = c["num_experts"]
    yield "embed_tokens.weight", "Q8_0", (V, D)
    yield "lm_head.weight", "Q8_0", (V, D)
    yield "norm.weight", "F32", (D,)
    for i in range(c["num_hidden_layers"]):
        p = f"layers.{i}."
        yield p + "input_layernorm.weight", "F32", (D,)
        yield p + "post_attention_layernorm.weight", "F32", (D,)
        if (i + 1) % c["full_attention_interval"]:
            yield p + "linear_attn.in_proj_qkv.weight", "Q8_0", (8192, D)
            yield p + "linear_attn.in_proj_z.weight", "Q8_0", (4096, D)
            yield p + "linear_attn.in_proj_b.weight", "Q8_0", (32, D)
            yield p + "linear_attn.in_proj_a.weight", "Q8_0", (32, D)
            yield p + "linear_attn.conv1d.weight", "F32", (8192, 4)
            yield p + "linear_attn.A_log", "F32", (32,)
            yield p + "linear_attn.dt_bias", "F32", (32,)
            yield p + "linear_attn.norm.weight", "F32", (128,)
            yield p + "linear_attn.out_proj.weight", "Q8_0", (D, 4096)
        else:
            yield p + "self_attn.q_proj.weight", "Q8_0", (8192, D)
            yield p + "self_attn.k_proj.weight", "Q8_0", (512, D)
            yield p + "self_attn.v_proj.weight", "Q8_0", (512, D)
            yield p + "self_attn.o_proj.weight", "Q8_0", (D, 4096)
            yield p + "self_attn.q_norm.weight", "F32", (256,)
            yield p + "self_attn.k_norm.weight", "F32", (256,)
        yield p + "mlp.gate.weight", "F32", (E, D)
        yield p + "mlp.shared_expert.gate_proj.weight", "Q8_0", (F, D)
        yield p + "mlp.shared_expert.up_proj.weight", "Q8_0", (F, D)
        yield p + "mlp.shared_expert.down_proj.weight", "Q8_0", (D, F)
        yield p + "mlp.shared_expert_gate.weight", "F32", (D,)
        yield p + "mlp.experts.gate_proj", "Q4_0", (E, F, D)
        yield p + "mlp.experts.up_proj", "Q4_0", (E, F, D)
        yield p + "mlp.experts.down_proj", "Q4_0", (E, D, F)


def write(path, c, n_vocab, expected=None):
    rng = np.random.default_rng(35)
    w = gguf.GGUFWriter(path, "qwen35moe")
    write_metadata(w, c, c["full_attention_interval"])
    for name, kind, shape in tensors(c, n_vocab):
        data = random_blocks(rng, kind, shape, scale=2.0 / shape[-1] ** 0.5)
        if name.endswith("A_log"):
            data = -np.abs(data) - np.float32(0.1)
        w.add_tensor(gguf_name(name), data, raw_dtype=None if kind == "F32" else Q[kind])
        if expected is not None:
            expected[name] = to_checkpoint(name, dequantize(data, Q[kind]).astype(np.float32), c)
    return w


def matrix(data, fmt, n_out, n_in, scale_exp):
    """The f32 numbers of a matrix, and the bytes that it takes."""
    if fmt == "f32":
        padded = -(-n_in // 16) * 16
        return np.frombuffer(data, np.float32, n_out * padded).reshape(n_out, padded)[:, :n_in]
    kind, group, scale = fmt.split("-")
    assert group == "g32" and kind in ("int4", "int8")
    n_panel, n_group, per = -(-n_out // 16), n_in // 32, 8 if kind == "int4" else 4
    n_scale = 16 * (2 if scale == "f16" else 4)
    blocks = np.frombuffer(data, np.uint8, n_panel * n_group * (n_scale + 16 * 32 * 4 // per))
    blocks = blocks.reshape(n_panel, n_group, -1)
    scales = blocks[:, :, :n_scale].copy().view(np.float16 if scale == "f16" else np.float32)
    scales = (scales.astype(np.float32) * np.float32(2.0) ** scale_exp).swapaxes(1, 2)
    codes = blocks[:, :, n_scale:].reshape(n_panel, n_group, 32 // per, 16, 4)
    if kind == "int4":
        codes = np.stack([codes & 15, codes >> 4], axis=4).reshape(n_panel, n_group, 4, 16, 8)
    codes = codes.transpose(0, 3, 1, 2, 4).reshape(n_panel, 16, n_group, 32).astype(np.int32)
    values = (codes - (8 if kind == "int4" else 128)).astype(np.float32) * scales[..., None]
    return values.reshape(n_panel * 16, n_in)[:n_out]


def read(directory):
    data = (directory / "model.coli").read_bytes()
    n_table, = struct.unpack_from("<Q", data, 16)
    table = json.loads(data[40:40 + n_table])
    found = {}
    for t in table["tensors"]:
        found[t["name"]] = matrix(memoryview(data)[t["offset"]:], t["format"], t["n_out"], t["n_in"],
                                  t["scale_exp"])
    for x in table["experts"]:
        for k, (part, n_out, n_in, at) in enumerate([
                ("gate", x["d_ff"], x["d_model"], 0), ("up", x["d_ff"], x["d_model"], x["up_offset"]),
                ("down", x["d_model"], x["d_ff"], x["down_offset"])]):
            found[f"layers.{x['layer']}.mlp.experts.{part}_proj"] = np.stack([
                matrix(memoryview(data)[x["offset"] + e * x["block_bytes"] + at:], x[part], n_out, n_in,
                       x["scale_exp"][3 * e + k]) for e in range(x["n_expert"])])
    return found


def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as scratch:
        scratch = Path(scratch)
        expected = {}
        finish(write(scratch / "pair.gguf", config(2, 2, 8), 512, expected))
        subprocess.run([sys.argv[1], "convert", scratch / "pair.gguf", scratch / "out"], check=True)
        found = read(scratch / "out")
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    n = 0
    for name, x in expected.items():
        x, y = x.reshape(-1), np.ascontiguousarray(found[name]).reshape(-1)
        if name.endswith("A_log"):  # a logarithm, rounded twice
            assert np.abs(x - y).max() < 2.0 ** -22, name
        else:
            assert x.tobytes() == y.tobytes(), name
        n += x.size
    print(f"{len(expected)} tensors, {n} weights: equal")


if __name__ == "__main__":
    main()
